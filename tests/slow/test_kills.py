"""Commands are killed at random moments: nobody reads half of anything, and the end is that of an uninterrupted run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

import headjax
from tests.commands.language_folder import write_language_folder

CONFIG = """
from ml_collections import ConfigDict

def get_config(arg=""):
    return ConfigDict({
        "start": "model",
        "data": {"task": "text.txt", "length": 16},
        "batch_size": 8, "steps": int(arg), "log_every": 1, "checkpoint_every": 2, "keep_checkpoints": 2,
        "optimizer": {"kind": "adamw", "schedule": {"kind": "cosine", "peak": 0.01, "warmup_steps": 2}},
        "mesh": {"data": 1}, "tensorboard": False,
    })
"""
"""Of a training run; its argument is the number of steps."""

COMMANDS = {
    "train": ("train --config config.py:20 --workdir run", "run/model"),
    "prune": ("prune model out --remove 50% --by random --overwrite", "out"),
}


def start(name: str, folder: Path) -> subprocess.Popen[bytes]:
    """Begin a command in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "headjax", *COMMANDS[name][0].split()]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)


def values(path: Path) -> np.ndarray:
    """The parameters of a whole model directory."""
    return np.concatenate([np.ravel(array) for array in jax.tree.leaves(nnx.state(headjax.load(path)))])


def listed(folder: Path) -> list[str]:
    """All below a folder in which a command writes; `os.walk` passes over what goes meanwhile, `rglob` fails."""
    return sorted(os.path.join(at, name) for at, folders, files in os.walk(folder) for name in (*folders, *files))


MANY = [pytest.param(name, 40, marks=pytest.mark.attack) for name in COMMANDS]


@pytest.mark.parametrize(("name", "kills"), [*((name, 2) for name in COMMANDS), *MANY])
def test_a_killed_command_loses_nothing(name, kills, tmp_path):
    write_language_folder(tmp_path, max_length=16)
    (tmp_path / "config.py").write_text(CONFIG)
    result = tmp_path / COMMANDS[name][1]
    if name == "prune":
        headjax.load(tmp_path / "model").save(result)
    seen = [values(result)] if result.exists() else []
    written = tmp_path / ("run" if name == "train" else "out")
    for seconds in np.random.default_rng(0).uniform(0, 2, kills):
        before = listed(tmp_path)
        process = start(name, tmp_path)
        while process.poll() is None and listed(tmp_path) == before:
            time.sleep(0.002)  # until it writes
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for file in written.rglob("*.json"):
            assert json.loads(file.read_text()) is not None, file
        seen += [values(result)] if result.exists() else []
    assert start(name, tmp_path).wait() == 0
    found = values(result)
    assert all(np.array_equal(each, found) or np.array_equal(each, seen[0]) for each in seen)
    for folder in (tmp_path / "run", tmp_path / "out"):
        if folder.exists():
            folder.rename(tmp_path / f"first {folder.name}")
    assert start(name, tmp_path).wait() == 0
    np.testing.assert_array_equal(values(result), found)
