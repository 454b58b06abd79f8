"""The training state and where each of its arrays lies on the mesh."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from headjax.core import tensors as declared
from headjax.core.tensors import Params
from headjax.mesh.distributed import place_copies
from headjax.mesh.mesh import replicated
from headjax.mesh.rules import ShardingConfig, moment_shardings, shardings
from headjax.models.config import ModelConfig


class TrainState(NamedTuple):
    """Everything a training step reads and writes.

    Attributes:
        step: number of steps done.
        params: the model's parameters.
        optimizer: the optimizer's state.
    """

    step: Any  # an array; its sharding or its shape in the functions below
    params: Params
    optimizer: Any


def state_shardings(
    model: ModelConfig,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    sharding: ShardingConfig = ShardingConfig(),
) -> TrainState:
    """A `NamedSharding` for every array of the state."""
    params = shardings(model.tensors(), mesh, sharding=sharding)
    empty = replicated(mesh)
    moments = optax.tree.map_params(
        optimizer,
        lambda _, place: place,
        jax.eval_shape(optimizer.init, declared.abstract(model.tensors())),
        moment_shardings(model.tensors(), mesh, sharding),
        transform_non_params=lambda _: empty,
    )
    return TrainState(empty, params, moments)


def initial_state(
    model: ModelConfig,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    seed: int,
    params: Params | None = None,
    sharding: ShardingConfig = ShardingConfig(),
) -> TrainState:
    """The state before the first step, created in its shards.

    Args:
        model: the architecture.
        optimizer: see `headjax.training.optimizer`.
        mesh: the devices.
        seed: of the initialisation.
        params: start from these instead of fresh ones (fine-tuning).
        sharding: where on the mesh what lies.
    """
    places = state_shardings(model, optimizer, mesh, sharding)

    def create(params: Params) -> TrainState:
        return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))

    if params is not None:
        # A copy, since training steps donate their state and must not take the caller's model along.
        placed = place_copies(params, places.params)
        return jax.jit(create, out_shardings=places)(placed)
    fresh = jax.jit(lambda key: create(model.initialize(key)), out_shardings=places)
    return fresh(jax.random.key(seed))


def abstract_state(
    model: ModelConfig,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    sharding: ShardingConfig = ShardingConfig(),
) -> TrainState:
    """Shapes, types and shardings of the state: what a checkpoint is restored onto."""
    params = declared.abstract(model.tensors())
    shapes = TrainState(jax.ShapeDtypeStruct((), jnp.int32), params, jax.eval_shape(optimizer.init, params))
    return jax.tree.map(
        lambda shape, place: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=place),
        shapes,
        state_shardings(model, optimizer, mesh, sharding),
    )
