"""The gradient of a batch's mean loss, at once or in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from headjax.core.tensors import Params
from headjax.mesh.mesh import BATCH_AXES
from headjax.models.config import Batch, Loss


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
    dropout, which each part draws with a key of its own, nothing depends on the number of parts. Where the current mesh
    has copies of the model alone, each adds up its own gradient, and they are reduced once, after the last part; each
    copy draws with a key of its own then.

    Args:
        losses_of: from parameters, a dropout key and a part of the batch to its losses.
        params: where the gradient is taken.
        key: of dropout.
        batch: arrays `[batch, ...]`.
        parts: how many; they divide the batch, and each device's share of it.
    """
    mesh = jax.sharding.get_abstract_mesh()
    copies = not mesh.empty and 1 < mesh.size == mesh.shape["data"]
    sums = (_summed_by_copies if copies else _summed)(losses_of, params, key, batch, parts)
    targets = jnp.maximum(sums.targets, 1.0)
    return Gradient(sums.loss / targets, sums.targets, jax.tree.map(lambda slope: slope / targets, sums.params))


def _summed(
    losses_of: Callable[[Params, jax.Array, Batch], Loss], params: Params, key: jax.Array, batch: Batch, parts: int
) -> Gradient:
    """The gradient of a batch's summed loss, in parts."""

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
    return sums


def _summed_by_copies(
    losses_of: Callable[[Params, jax.Array, Batch], Loss], params: Params, key: jax.Array, batch: Batch, parts: int
) -> Gradient:
    """The same, each copy of the model on its own examples; what it adds up is reduced at the end."""

    def of_a_copy(params: Params, key: jax.Array, batch: Batch) -> Gradient:
        own = jax.random.fold_in(key, jax.lax.axis_index(BATCH_AXES))
        return jax.lax.psum(_summed(losses_of, params, own, batch, parts), BATCH_AXES)

    whole, spread = PartitionSpec(), PartitionSpec(BATCH_AXES)
    # Without the check, JAX leaves the gradient of a copy to itself and does not reduce it in every part.
    placed = jax.shard_map(of_a_copy, in_specs=(whole, whole, spread), out_specs=whole, check_vma=False)
    return placed(params, key, batch)


def _cut(array: jax.Array, parts: int) -> jax.Array:
    """`[batch, ...]` as `[parts, batch / parts, ...]`, every device's examples spread evenly over the parts."""
    cut = jnp.swapaxes(array.reshape(array.shape[0] // parts, parts, *array.shape[1:]), 0, 1)
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.manual_axes:
        return cut
    return jax.lax.with_sharding_constraint(cut, PartitionSpec(None, BATCH_AXES))
