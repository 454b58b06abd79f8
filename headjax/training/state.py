"""The training state: its arrays, their places on the mesh, and their values before the first step."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from headjax.core import history
from headjax.core import tensors as declared
from headjax.core.serialize import to_data
from headjax.core.tensors import Params
from headjax.data.examples import Source
from headjax.data.stream import train_iterator
from headjax.initialization import Setting
from headjax.mesh.distributed import place_copies, process_share, put_batch
from headjax.mesh.mesh import replicated
from headjax.mesh.rules import ShardingConfig, moment_shardings, shardings
from headjax.models.config import ModelConfig
from headjax.models.inputs import check_batch
from headjax.models.recipe import Start
from headjax.training.config import TrainConfig


class TrainState(NamedTuple):
    """The arrays that a training step reads and writes."""

    step: Any  # an array; its sharding or its shape in the functions below
    params: Params
    optimizer: Any


def abstract_state(
    model: ModelConfig,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    sharding: ShardingConfig = ShardingConfig(),
) -> TrainState:
    """Return the shapes, types and shardings of the state, onto which a checkpoint is restored."""
    tensors, whole = model.tensors(), replicated(mesh)
    shapes = jax.eval_shape(functools.partial(_first, optimizer), declared.abstract(tensors))
    moments = optax.tree.map_params(
        optimizer,
        lambda _, place: place,
        shapes.optimizer,
        moment_shardings(tensors, mesh, sharding),
        transform_non_params=lambda _: whole,
    )
    places = TrainState(whole, shardings(tensors, mesh, sharding=sharding), moments)
    return jax.tree.map(
        lambda shape, place: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=place), shapes, places
    )


def state_shardings(*described: Any) -> TrainState:
    """Return a `NamedSharding` for every array of the state that `abstract_state` describes."""
    return jax.tree.map(lambda each: each.sharding, abstract_state(*described))


def initial_state(
    model: ModelConfig,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    seed: int,
    params: Params | None = None,
    sharding: ShardingConfig = ShardingConfig(),
) -> TrainState:
    """Return the state before the first step, created in its shards."""
    if params is None:
        return _fresh(model, optimizer, mesh, sharding)(jax.random.key(seed))
    short = sorted({np.dtype(array.dtype).name for array in jax.tree.leaves(params)} - {"float32"})
    if short:
        warnings.warn(f"model: its {' and '.join(short)} weights are trained, and saved, in float32", stacklevel=2)
    places = state_shardings(model, optimizer, mesh, sharding)
    # A copy, since training steps donate their state and must not take the caller's model along.
    placed = place_copies(params, places.params)
    return jax.jit(functools.partial(_first, optimizer), out_shardings=places)(placed)


def _first(optimizer: optax.GradientTransformation, params: Params) -> TrainState:
    params = jax.tree.map(lambda array: array.astype(jnp.float32), params)
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


@functools.lru_cache(maxsize=2)
def _fresh(
    model: ModelConfig, optimizer: optax.GradientTransformation, mesh: Mesh, sharding: ShardingConfig
) -> Callable[[jax.Array], TrainState]:
    """Return the function of a key that draws fresh parameters; runs that differ in the seed share its compilation."""
    places = state_shardings(model, optimizer, mesh, sharding)

    def fresh(key: jax.Array) -> TrainState:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return _first(optimizer, model.initialize(key))

    return jax.jit(fresh, out_shardings=places)


def starting_state(
    config: TrainConfig, start: Start, optimizer: optax.GradientTransformation, mesh: Mesh, source: Source
) -> tuple[TrainState, list[dict[str, Any]]]:
    """Return the state before a run's first step: given parameters, or fresh ones by the config's initialisation.

    An initialisation that measures does so on the batches that training then begins with. The second is its entry in
    the model's history, none without one.
    """
    model, step = start.config, config.initialization
    if step is None or start.params is not None:
        return initial_state(model, optimizer, mesh, config.seed, start.params, config.sharding), []
    places = state_shardings(model, optimizer, mesh, config.sharding).params
    key = jax.random.key(config.seed)

    def draw(key: jax.Array) -> Params:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return step.draw(model, key)

    params = jax.jit(draw, out_shardings=places)(key)
    batches = []
    if step.num_batches:
        iterator = train_iterator(source, config.batch_size, config.seed, share=process_share(mesh))
        batches = [put_batch(check_batch(model, next(iterator)), mesh) for _ in range(step.num_batches)]
    setting = Setting(batches, jax.random.fold_in(key, 0), mesh, config.compute)
    params, measured = step.measure(model, params, setting)
    entry = history.entry("initialize", **to_data(step), **measured)
    return initial_state(model, optimizer, mesh, config.seed, params, config.sharding), [entry]
