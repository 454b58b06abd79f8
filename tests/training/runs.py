"""A small run, which tests interrupt, continue and compare."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from headjax.data.examples import TaskData, token_blocks
from headjax.training.config import TrainConfig, train_config
from headjax.training.loop import TrainResult, train
from tests import tiny

VOCABULARY, STEPS = 24, 7
MODEL = tiny.RUN["model"] | {
    "vocab_size": VOCABULARY, "max_length": 12, "hidden": 32, "dropout": 0.1,
    "attention_dropout": 0.1,
}  # fmt: skip
POST_NORM = MODEL | {
    "num_layers": 3, "residual": "post_norm", "embedding_norm": True, "initializer": {"kind": "fan_in"},
}  # fmt: skip
FIELDS = {
    "model": MODEL, "data": {"task": "python_code"}, "batch_size": 8, "steps": STEPS, "log_every": 1,
    "optimizer": {"kind": "adamw", "schedule": {"kind": "cosine", "peak": 0.01, "warmup_steps": 2}},
    "checkpoint_every": 3, "tensorboard": False,
}  # fmt: skip


def constant(peak: float = 0.01, **fields: Any) -> dict[str, Any]:
    """An optimizer of a constant learning rate."""
    return {"kind": "adamw", "schedule": {"kind": "constant_rate", "peak": peak} | fields, "weight_decay": 0.0}


def walk() -> TaskData:
    """Text with something to learn: every token is followed by the next or the next but one."""
    tokens = np.cumsum(np.random.default_rng(0).integers(1, 3, size=1500)) % VOCABULARY
    blocks = [token_blocks(part.astype(np.int32), 12) for part in (tokens[:1200], tokens[1200:])]
    return TaskData(None, *blocks, {"text": "a random walk"})


@contextlib.contextmanager
def one_device() -> Iterator[None]:
    """Meshes built inside see a single device."""
    devices = jax.devices()[:1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda *arguments: devices)
        yield


def config(**changes: Any) -> TrainConfig:
    """The config of the run with other fields."""
    return train_config(FIELDS | changes)


def run(workdir: Any, data: TaskData, *, options: Any = None, **changes: Any) -> TrainResult:
    """Train with other fields of the config, on one device unless a mesh is among them."""
    with contextlib.nullcontext() if "mesh" in changes else one_device():
        return train(config(**changes), workdir, data=data, **(options or {}))


def after(step: int, act: Callable[[], Any]) -> dict[str, Any]:
    """The option of a progress bar that acts when a step is done."""

    @contextlib.contextmanager
    def opened(title: str, total: int, unit: str) -> Iterator[Callable[[int, Any], Any]]:
        yield lambda done, values: act() if title == "training" and done == step else None

    return {"progress": opened}


def terminate() -> None:
    """Send this process a SIGTERM."""
    os.kill(os.getpid(), signal.SIGTERM)


def read_metrics(file: Path) -> list[dict[str, float]]:
    """The records of a run's `metrics.jsonl`."""
    return [json.loads(line) for line in file.read_text().splitlines()]
