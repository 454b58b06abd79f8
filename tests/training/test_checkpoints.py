"""What is written when, and what is on record of it."""

import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from headjax.core.errors import CheckpointError
from headjax.mesh.mesh import MeshConfig
from headjax.training.checkpoints import SHARED_FROM, BestModel, Checkpoints
from headjax.training.state import TrainState
from tests import tiny


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


def test_copies_of_small_arrays_are_written_whole(caplog, tmp_path):
    """Cutting them by device compiles a program for each shape and device, which a first checkpoint would wait for."""
    copies = NamedSharding(MeshConfig().build(), PartitionSpec())
    params = {"small": jnp.arange(8 * 64.0).reshape(8, 64), "large": jnp.arange(8.0 * SHARED_FROM // 4)}
    state = jax.device_put(TrainState(jnp.int32(1), params, {}), copies)
    jax.clear_caches()
    with jax.log_compiles(), Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, state, {})
    compiled = re.findall(r"compilation of jit\((\w*slice)\)", caplog.text)
    assert len(compiled) == len(jax.devices())
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        restored, _ = checkpoints.restore(1, state)
    jax.tree.map(np.testing.assert_array_equal, restored, state)


def test_the_best_model_is_kept_and_found_again(tmp_path):
    model = tiny.model(tiny.decoder_config())

    def offer(best, step, accuracy, loss=1.0):
        metrics = {"accuracy": accuracy, "loss": loss}
        entry = {"action": "train", "steps": step, "metrics": metrics}
        best.offer(step, metrics, lambda: model.replace(history=(entry,)))
        return best.step

    best = BestModel(tmp_path, "accuracy", True)
    assert best.step is None
    steps = [offer(best, step, value) for step, value in enumerate((np.nan, 0.5, 0.4, np.nan, 0.5, 0.7), start=1)]
    assert steps == [1, 2, 2, 2, 2, 6]
    # A run that goes on knows the value that later evaluations have to beat.
    again = BestModel(tmp_path, "accuracy", True)
    assert (again.step, offer(again, 7, 0.6), offer(again, 8, 0.8)) == (6, 6, 8)
    # Of equal metrics that with the smaller loss is better.
    assert (offer(again, 9, 0.8, loss=0.9), offer(again, 10, 0.8, loss=1.1)) == (9, 9)
    assert again.load().history[-1]["steps"] == 9
    lower = BestModel(tmp_path / "loss")
    assert [offer(lower, 1, 0.5), lower.load().history[-1]["steps"]] == [1, 1]
