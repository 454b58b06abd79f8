"""The gradient of a batch's mean loss, at once or in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from headjax.models.base import Batch, Loss
from headjax.parallel.mesh import BATCH_AXES
from headjax.tensors import Params


class Gradient(NamedTuple):
    """A batch's mean loss and its gradient.

    Attributes:
        loss: mean over the batch's targets, in nats.
        targets: number of targets.
        params: the gradient, nested as the parameters.
    """

    loss: jax.Array
    targets: jax.Array
    params: Params


def gradient(
    minimised: Callable[[Params, jax.Array], tuple[jax.Array, Loss]], params: Params, key: jax.Array
) -> Gradient:
    """The gradient of a whole batch.

    Args:
        minimised: from parameters and a dropout key to what is minimised and the losses it comes of.
        params: where the gradient is taken.
        key: of dropout.
    """
    (loss, losses), slope = jax.value_and_grad(minimised, has_aux=True)(params, key)
    return Gradient(loss, losses.weight.sum(), slope)


def accumulated_gradient(
    losses_of: Callable[[Params, jax.Array, Batch], Loss], params: Params, key: jax.Array, batch: Batch, parts: int
) -> Gradient:
    """The gradient of a batch computed in parts, one after another: activations are those of one part.

    The mean is over the whole batch's targets, sum_i total_i / sum_i weight_i, so that up to rounding, and up to
    dropout, which each part draws with a key of its own, nothing depends on the number of parts.

    Args:
        losses_of: from parameters, a dropout key and a part of the batch to its losses.
        params: where the gradient is taken.
        key: of dropout.
        batch: arrays `[batch, ...]`.
        parts: how many; they divide the batch, and each device's share of it.
    """

    def total(params: Params, key: jax.Array, part: Batch) -> tuple[jax.Array, jax.Array]:
        losses = losses_of(params, key, part)
        return losses.total.sum(), losses.weight.sum()

    def add(sums: Gradient, part: tuple[jax.Array, Batch]) -> tuple[Gradient, None]:
        index, examples = part
        (loss, targets), slope = jax.value_and_grad(total, has_aux=True)(
            params, jax.random.fold_in(key, index), examples
        )
        return jax.tree.map(jnp.add, sums, Gradient(loss, targets, slope)), None

    nothing = Gradient(jnp.zeros(()), jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
    sums, _ = jax.lax.scan(add, nothing, (jnp.arange(parts), jax.tree.map(lambda array: _cut(array, parts), batch)))
    targets = jnp.maximum(sums.targets, 1.0)
    return Gradient(sums.loss / targets, sums.targets, jax.tree.map(lambda slope: slope / targets, sums.params))


def _cut(array: jax.Array, parts: int) -> jax.Array:
    """`[batch, ...]` as `[parts, batch / parts, ...]`, every device's examples spread evenly over the parts."""
    cut = jnp.swapaxes(array.reshape(array.shape[0] // parts, parts, *array.shape[1:]), 0, 1)
    if jax.sharding.get_abstract_mesh().empty:
        return cut
    return jax.lax.with_sharding_constraint(cut, PartitionSpec(None, BATCH_AXES))
