"""One training step and one evaluation step, jitted with explicit shardings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from headjax.core.tensors import Params
from headjax.evaluation.measures import Measure
from headjax.mesh.mesh import batch_sharding, replicated
from headjax.mesh.random_bits import Prng, step_key
from headjax.mesh.rules import ShardingConfig, moment_shardings
from headjax.models.compute import Compute
from headjax.models.config import Batch, Loss, ModelConfig, Options
from headjax.training.gradient import Gradient, accumulated_gradient, gradient
from headjax.training.state import TrainState, state_shardings


class StepMetrics(NamedTuple):
    """What one training step reports, each a scalar.

    Attributes:
        loss: mean loss over the batch's targets, in nats.
        gradient_norm: global norm of the gradient before clipping.
        targets: number of targets.
        tokens: number of tokens that the model reads, padding left out.
    """

    loss: jax.Array
    gradient_norm: jax.Array
    targets: jax.Array
    tokens: jax.Array


NumberedStep = Callable[[int, TrainState, Batch], tuple[TrainState, StepMetrics]]
"""A step that is told its number, counted from 1, so that some can be watched more closely."""


def updated(
    optimizer: optax.GradientTransformation, state: TrainState, gradient: Gradient, tokens: jax.Array
) -> tuple[TrainState, StepMetrics]:
    """The state after one step down the gradient, to be traced."""
    updates, moments = optimizer.update(gradient.params, state.optimizer, state.params)
    params = optax.apply_updates(state.params, updates)
    metrics = StepMetrics(gradient.loss, optax.tree.norm(gradient.params), gradient.targets, tokens)
    return TrainState(state.step + 1, params, moments), metrics


def train_step(
    model: ModelConfig,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    compute: Compute,
    seed: int,
    accumulate: int = 1,
    sharding: ShardingConfig = ShardingConfig(),
    prng: Prng = "threefry2x32",
) -> Callable[[TrainState, Batch], tuple[TrainState, StepMetrics]]:
    """The jitted step. It donates the state it is given, and draws dropout from (seed, step) alone.

    Args:
        model: the architecture.
        optimizer: makes updates of gradients.
        mesh: the devices.
        compute: how to compute.
        seed: of dropout.
        accumulate: parts of the batch that are computed one after another.
        sharding: where on the mesh what lies.
        prng: where dropout takes its random bits from.
    """

    def losses_of(params: Params, key: jax.Array, batch: Batch) -> Loss:
        return model.loss(model.apply(params, batch, Options(key=key, compute=compute)), batch)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        def minimised(params: Params, key: jax.Array) -> tuple[jax.Array, Loss]:
            losses = losses_of(params, key, batch)
            return losses.mean(), losses

        # Attention kernels that XLA cannot partition spread themselves over the mesh they find here.
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            key = step_key(seed, state.step, prng)
            if accumulate == 1:
                found = gradient(minimised, state.params, key)
            else:
                found = accumulated_gradient(losses_of, state.params, key, batch, accumulate)
            # First where the parameters lie, or the compiler would spread activations as the moments are; then where
            # the moments lie: under ZeRO every device updates only its own part of the parameters.
            placed = jax.lax.with_sharding_constraint(found.params, places.params)
            placed = jax.lax.with_sharding_constraint(placed, moments)
            return updated(optimizer, state, found._replace(params=placed), model.count_tokens(batch))

    places = state_shardings(model, optimizer, mesh, sharding)
    moments = moment_shardings(model.tensors(), mesh, sharding)
    return jax.jit(
        step,
        in_shardings=(places, batch_sharding(mesh)),
        out_shardings=(places, replicated(mesh)),
        donate_argnums=0,
    )


def evaluation_step(model: ModelConfig, mesh: Mesh, *, compute: Compute) -> Callable[[Params, Batch], Loss]:
    """The jitted evaluation of one batch: its per-example losses."""

    def step(params: Params, batch: Batch) -> Loss:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return model.for_evaluation().loss(model.apply(params, batch, Options(compute=compute)), batch)

    return jax.jit(step, out_shardings=replicated(mesh))


def measuring_step(
    model: ModelConfig, measure: Measure, mesh: Mesh, *, compute: Compute
) -> Callable[[Params, Batch], tuple[Loss, dict[str, jax.Array]]]:
    """The jitted evaluation of one batch: its per-example losses, and what a task's metrics are made of."""
    outcomes = measure.outcomes()

    def step(params: Params, batch: Batch) -> tuple[Loss, dict[str, jax.Array]]:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            output = model.apply(params, batch, Options(compute=compute))
            loss = model.for_evaluation().loss(output, batch)
            return loss, {name: outcome(output, batch) for name, outcome in outcomes.items()}

    return jax.jit(step, out_shardings=replicated(mesh))


def put_batch(batch: Mapping[str, jax.typing.ArrayLike], mesh: Mesh) -> dict[str, jax.Array]:
    """This process's part of a batch as global arrays, spread over the mesh's batch axes."""
    place = batch_sharding(mesh)
    return {name: jax.make_array_from_process_local_data(place, np.asarray(array)) for name, array in batch.items()}


def put_whole_batch(batch: Mapping[str, jax.typing.ArrayLike], mesh: Mesh) -> dict[str, jax.Array]:
    """A batch that every process has whole as global arrays, spread over the mesh's batch axes."""
    place, arrays = batch_sharding(mesh), {name: np.asarray(array) for name, array in batch.items()}
    return {name: jax.make_array_from_process_local_data(place, a, a.shape) for name, a in arrays.items()}
