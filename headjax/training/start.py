"""The state before the first step: given parameters, or fresh ones by the config's initialisation."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jax
import optax
from jax.sharding import Mesh

from headjax.core import history
from headjax.core.files import write_file
from headjax.core.serialize import to_data
from headjax.data.examples import Source
from headjax.data.stream import train_iterator
from headjax.initialization import Setting
from headjax.mesh.distributed import is_first, process_share
from headjax.models.inputs import check_batch
from headjax.models.recipe import Start
from headjax.training.config import TrainConfig
from headjax.training.state import TrainState, initial_state, state_shardings
from headjax.training.step import put_batch

INITIALIZATION = "initialization.json"
"""A workdir's file that says what the initialisation measured."""


def starting_state(
    config: TrainConfig,
    start: Start,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    source: Source,
    workdir: Path,
) -> TrainState:
    """The state before the first step.

    An initialisation that measures does so on the batches that training then begins with. What it measured is written
    to the workdir, for the model's history.

    Args:
        config: the run.
        start: what it starts from.
        optimizer: see `headjax.training.optimizer`.
        mesh: the devices.
        source: the training examples.
        workdir: of the run.
    """
    model, step = start.config, config.initialization
    if step is None or start.params is not None:
        return initial_state(model, optimizer, mesh, config.seed, start.params, config.sharding)
    places = state_shardings(model, optimizer, mesh, config.sharding).params
    key = jax.random.key(config.seed)
    params = jax.jit(functools.partial(step.draw, model), out_shardings=places)(key)
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
    """The history entry of the run's initialisation; none where it has none."""
    path = workdir / INITIALIZATION
    return [json.loads(path.read_text())] if path.exists() else []
