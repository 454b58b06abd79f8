"""The models along a training run, from its checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jax

from headjax.core.errors import CheckpointError
from headjax.mesh.mesh import MeshConfig
from headjax.models.model import Model
from headjax.training.checkpoints import CONFIG, Checkpoints
from headjax.training.config import train_config
from headjax.training.state import abstract_state


def snapshots(workdir: str | Path) -> Iterator[tuple[int, Model]]:
    """(step, model) for every checkpoint that the workdir of a run still holds (`keep_checkpoints`), oldest first.

    The models have no tokenizer.

    Args:
        workdir: of `headjax train`.

    Raises:
        CheckpointError: the folder holds no run, or a checkpoint cannot be read.
    """
    workdir = Path(workdir)
    if not (workdir / CONFIG).is_file():
        raise CheckpointError(f"{workdir}: holds no training run ({CONFIG} is missing)")
    config = train_config(json.loads((workdir / CONFIG).read_text()))
    model = config.architecture()
    optimizer = config.optimizer.build(model.tensors(), config.steps)
    target = abstract_state(model, optimizer, MeshConfig(data=1).build(jax.devices()[:1]))
    with Checkpoints(workdir, config.keep_checkpoints) as checkpoints:
        for step in checkpoints.steps:
            state, _ = checkpoints.restore(step, target)
            yield step, Model(model, state.params)
