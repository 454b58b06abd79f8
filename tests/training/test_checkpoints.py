"""A checkpoint's files are on record as soon as it is complete, whatever befalls the run before the next one."""

import time

import jax.numpy as jnp
import pytest

from headjax.errors import CheckpointError
from headjax.training.checkpoints import Checkpoints
from headjax.training.state import TrainState


@pytest.fixture
def state():
    return TrainState(jnp.int32(1), {"weight": jnp.ones((64, 64))}, {"moment": jnp.zeros((64, 64))})


def complete(checkpoints, step, seconds=60):
    """Waits until a checkpoint stands under its name, as steps of training go by."""
    end = time.monotonic() + seconds
    while not (checkpoints.path / str(step)).is_dir():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_run_that_is_killed_has_the_record_of_its_last_checkpoint(state, tmp_path):
    """Without another save and without a clean end, which both wait for the checkpoint that is being written."""
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, state._replace(step=jnp.int32(step)), {"batch": step})
            complete(checkpoints, step)
            checkpoints.record_complete()
            assert (checkpoints.path / str(step) / "sizes.json").exists()
        restored, position = checkpoints.restore(2, state)
        assert int(restored.step) == position["batch"] == 2
        files = [path for path in (checkpoints.path / "2" / "state").rglob("*") if path.is_file()]
        largest = max(files, key=lambda path: path.stat().st_size)
        largest.write_bytes(largest.read_bytes()[:-1])
        with pytest.raises(CheckpointError, match=f"{largest}: .*truncated"):
            checkpoints.restore(2, state)
