"""One training step: an objective, its gradient at once or in parts, and the optimizer's update, jitted for a mesh."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, PartitionSpec

from headjax.core.tensors import Params
from headjax.mesh.mesh import BATCH_AXES, COPY_AXES, axes_of, batch_sharding, parts_along, replicated
from headjax.mesh.random_bits import Prng, step_key
from headjax.mesh.rules import ShardingConfig, moment_shardings
from headjax.models.compute import Compute
from headjax.models.config import Batch, Loss, ModelConfig, Options, Output
from headjax.training.state import TrainState, state_shardings


class Objective(NamedTuple):
    """The number that training makes small: `sum_i weights_i * mean(losses_i)`, each mean over its own targets."""

    losses: Callable[[Output, Batch], tuple[Loss, ...]]
    weights: tuple[float, ...] = (1.0,)


def task_objective(model: ModelConfig) -> Objective:
    """Return the objective of ordinary training: the model's own loss on the batch's labels."""
    return Objective(lambda output, batch: (model.loss(output, batch),))


class Gradient(NamedTuple):
    """The value of an objective on a batch, and its gradient."""

    loss: jax.Array
    targets: jax.Array
    params: Params


LossesOf = Callable[[Params, jax.Array, Batch], tuple[Loss, ...]]
"""From parameters, a dropout key and a batch to the losses of an objective's terms."""


class StepMetrics(NamedTuple):
    """Measurements of one training step, each a scalar."""

    loss: jax.Array
    gradient_norm: jax.Array
    targets: jax.Array
    tokens: jax.Array


@dataclasses.dataclass(frozen=True)
class TrainStep:
    """A jitted training step, which donates the state it is given and draws dropout from (seed, step) alone."""

    program: Any
    seed: np.uint32

    def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        """Return the state after the step, and its measurements."""
        after: tuple[TrainState, StepMetrics] = self.program(state, batch, self.seed)
        return after

    def lower(self, state: Any, batch: Any) -> Any:
        """Return the step lowered for arrays of these shapes; compiled, it takes the seed after state and batch."""
        return self.program.lower(state, batch, self.seed)


def train_step(
    model: ModelConfig,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    compute: Compute,
    seed: int,
    objective: Objective | None = None,
    accumulate: int = 1,
    sharding: ShardingConfig = ShardingConfig(),
    prng: Prng = "threefry2x32",
) -> TrainStep:
    """Return the jitted step."""
    program = _program(model, optimizer, mesh, compute, objective, accumulate, sharding, prng)
    return TrainStep(program, np.uint32(seed % 2**32))


@functools.lru_cache(maxsize=2)
def _program(
    model: ModelConfig,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    compute: Compute,
    objective: Objective | None,
    accumulate: int,
    sharding: ShardingConfig,
    prng: Prng,
) -> Any:
    aim = task_objective(model) if objective is None else objective
    graph, _ = nnx.split(model.module(), graph=False)  # the weights are declared alone; their arrays are in the state
    places = state_shardings(model, optimizer, mesh, sharding)
    moments = moment_shardings(model.tensors(), mesh, sharding)

    def step(state: TrainState, batch: Batch, seed: jax.Array) -> tuple[TrainState, StepMetrics]:
        # Attention kernels that XLA cannot partition spread themselves over the mesh they find here.
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            key = step_key(seed, state.step, prng)

            def losses_of(params: Params, key: jax.Array, batch: Batch) -> tuple[Loss, ...]:
                module = nnx.merge(graph, compute.cast(params))
                output = model.forward(module, batch, Options(key=key, compute=compute))
                return aim.losses(output, batch)

            found = gradient(losses_of, aim.weights, state.params, key, batch, accumulate)
            # First where the parameters lie, or the compiler would spread activations as the moments are; then where
            # the moments lie: under ZeRO every device updates only its own part of the parameters.
            slope = jax.lax.with_sharding_constraint(found.params, places.params)
            slope = jax.lax.with_sharding_constraint(slope, moments)
            updates, optimized = optimizer.update(slope, state.optimizer, state.params)
            params = optax.apply_updates(state.params, updates)
            metrics = StepMetrics(found.loss, optax.tree.norm(slope), found.targets, model.count_tokens(batch))
            return TrainState(state.step + 1, params, optimized), metrics

    return jax.jit(
        step,
        in_shardings=(places, batch_sharding(mesh), replicated(mesh)),
        out_shardings=(places, replicated(mesh)),
        donate_argnums=0,
    )


def gradient(
    losses_of: LossesOf,
    weights: Sequence[float],
    params: Params,
    key: jax.Array,
    batch: Batch,
    parts: int = 1,
) -> Gradient:
    """Return the gradient of `sum_i weights_i * mean(losses_i)` over a batch.

    In several parts, one after another, activations are those of one part; the objective then has one term. The mean is
    over the whole batch's targets, so nothing depends on the number of parts, up to rounding, and up to dropout, which
    each part draws with a separate key. Where the current mesh has copies of the model alone, each adds up its own
    gradient, and they are reduced once, after the last part; each copy then draws with a separate key.
    """
    if parts == 1:

        def value(params: Params) -> tuple[jax.Array, jax.Array]:
            terms = losses_of(params, key, batch)
            means = [weight * losses.mean() for weight, losses in zip(weights, terms, strict=True)]
            return functools.reduce(jnp.add, means), terms[0].weight.sum()

        (loss, targets), slope = jax.value_and_grad(value, has_aux=True)(params)
        return Gradient(loss, targets, slope)
    mesh = jax.sharding.get_abstract_mesh()
    copies = not mesh.empty and 1 < mesh.size == parts_along(mesh, COPY_AXES)
    sums = (_summed_by_copies if copies else _summed)(losses_of, params, key, batch, parts)
    (weight,) = weights
    mean = jax.tree.map(lambda array: weight * (array / jnp.maximum(sums.targets, 1.0)), sums)
    return mean._replace(targets=sums.targets)


def _summed(losses_of: LossesOf, params: Params, key: jax.Array, batch: Batch, parts: int) -> Gradient:
    """Return the sum of a batch's losses and its gradient, computed in parts."""

    def total(params: Params, key: jax.Array, part: Batch) -> tuple[jax.Array, jax.Array]:
        (losses,) = losses_of(params, key, part)
        return losses.total.sum(), losses.weight.sum()

    def add(sums: Gradient, part: tuple[jax.Array, Batch]) -> tuple[Gradient, None]:
        index, examples = part
        (loss, targets), slope = jax.value_and_grad(total, has_aux=True)(
            params, jax.random.fold_in(key, index), examples
        )
        return jax.tree.map(jnp.add, sums, Gradient(loss, targets, slope)), None

    nothing = Gradient(jnp.zeros(()), jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
    cut = jax.tree.map(lambda array: _cut(array, parts), batch)
    return jax.lax.scan(add, nothing, (jnp.arange(parts), cut))[0]


def _summed_by_copies(losses_of: LossesOf, params: Params, key: jax.Array, batch: Batch, parts: int) -> Gradient:
    """Return the same, each copy of the model on its own examples; their sums are reduced at the end."""

    def of_a_copy(params: Params, key: jax.Array, batch: Batch) -> Gradient:
        own = jax.random.fold_in(key, jax.lax.axis_index(axes))
        return jax.lax.psum(_summed(losses_of, params, own, batch, parts), axes)

    axes = axes_of(jax.sharding.get_abstract_mesh(), BATCH_AXES)
    whole, spread = PartitionSpec(), PartitionSpec(axes)
    # Without the check, JAX leaves the gradient of a copy to itself and does not reduce it in every part.
    placed = jax.shard_map(of_a_copy, in_specs=(whole, whole, spread), out_specs=whole, check_vma=False)
    return placed(params, key, batch)


def _cut(array: jax.Array, parts: int) -> jax.Array:
    """Return `[batch, ...]` as `[parts, batch / parts, ...]`, every device's examples spread evenly over the parts."""
    cut = jnp.swapaxes(array.reshape(array.shape[0] // parts, parts, *array.shape[1:]), 0, 1)
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.manual_axes:
        return cut
    return jax.lax.with_sharding_constraint(cut, PartitionSpec(None, axes_of(mesh, BATCH_AXES)))
