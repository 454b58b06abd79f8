"""The training state: its arrays, their places on the mesh, and their values before the first step."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable
from pathlib import Path
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
from headjax.mesh.distributed import is_first, place_copies, process_share, put_batch
from headjax.mesh.mesh import replicated
from headjax.mesh.rules import ShardingConfig, moment_shardings, shardings
from headjax.models.config import ModelConfig
from headjax.models.inputs import check_batch
from headjax.models.model import Model
from headjax.storage.files import parse_json, write_file
from headjax.training.config import TrainConfig

INITIALIZATION = "initialization.json"
"""A workdir's file with the numbers that the initialisation measured."""


class TrainState(NamedTuple):
    """The arrays that a training step reads and writes."""

    step: Any  # an array; its sharding or its shape in the functions below
    params: Params
    optimizer: Any


def state_shardings(
    model: ModelConfig,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    sharding: ShardingConfig = ShardingConfig(),
) -> TrainState:
    """Return a `NamedSharding` for every array of the state."""
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


def abstract_state(
    model: ModelConfig,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    sharding: ShardingConfig = ShardingConfig(),
) -> TrainState:
    """Return the shapes, types and shardings of the state, onto which a checkpoint is restored."""
    params = declared.abstract(model.tensors())
    shapes = TrainState(jax.ShapeDtypeStruct((), jnp.int32), params, jax.eval_shape(optimizer.init, params))
    return jax.tree.map(
        lambda shape, place: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=place),
        shapes,
        state_shardings(model, optimizer, mesh, sharding),
    )


def starting_state(
    config: TrainConfig,
    model: ModelConfig,
    start: Model | None,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    source: Source,
    workdir: Path,
) -> TrainState:
    """Return the state before a run's first step: given parameters, or fresh ones by the config's initialisation.

    An initialisation that measures does so on the batches that training then begins with. Its measurements are written
    to the workdir, for the model's history.
    """
    step = config.initialization
    if step is None or start is not None:
        given = None if start is None else start.params
        return initial_state(model, optimizer, mesh, config.seed, given, config.sharding)
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
    if is_first():
        entry = history.entry("initialize", **to_data(step), **measured)
        write_file(workdir / INITIALIZATION, (json.dumps(entry, indent=2) + "\n").encode())
    return initial_state(model, optimizer, mesh, config.seed, params, config.sharding)


def read_initialization(workdir: Path) -> list[dict[str, Any]]:
    """Return the history entry of the run's initialisation in a list, which is empty without one."""
    path = workdir / INITIALIZATION
    return [parse_json(path.read_bytes(), str(path))] if path.exists() else []
