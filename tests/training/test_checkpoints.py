"""What is written when, and what is on record of it."""

import errno
import itertools
import os
import shutil
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint
import pytest

import headjax
from headjax.mesh.rules import ShardingConfig
from headjax.training.step import Trainer, TrainState
from headjax.training.workdir import Checkpoints
from tests import tiny
from tests.buckets import path_of


@pytest.fixture
def state():
    return TrainState(jnp.int32(1), {"weight": jnp.ones((64, 64))}, {"moment": jnp.zeros((64, 64))})


def save(checkpoints, state, *steps):
    for step in steps:
        checkpoints.save(step, state._replace(step=jnp.int32(step)), {"batch": step})


def restored(workdir, state):
    """The step of the newest checkpoint, the batch recorded with it, and the steps that are left."""
    with Checkpoints(workdir, keep=3) as checkpoints:
        found, position = checkpoints.restore(checkpoints.latest, state)
        return int(found.step), position["batch"], checkpoints.steps


def largest(folder):
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


@pytest.fixture
def three(state, tmp_path):
    """A workdir with the checkpoints of steps 1, 2 and 3."""
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        save(checkpoints, state, 1, 2, 3)
    return tmp_path


def test_a_checkpoint_that_cannot_begin_fails_at_once_and_leaves_no_thread(state, tmp_path):
    """Threads that waited for its folder would hold up the end of the process for minutes."""
    before = set(threading.enumerate())
    with Checkpoints(tmp_path, 1) as checkpoints:
        checkpoints.path.rmdir()
        checkpoints.path.touch()
        with pytest.raises(headjax.HeadjaxError, match=r"checkpoints.*: not a directory"):
            save(checkpoints, state, 1)
    left = [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]
    assert all(thread.name.startswith("asyncio") for thread in left)  # an executor's, which end with the process


def test_a_save_that_fails_while_the_run_ends_names_the_folder(state, tmp_path, monkeypatch):
    """Orbax raises what its threads met once more when it is closed, and that names no file."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(manager):
        raise full

    with (
        pytest.raises(headjax.HeadjaxError, match=f"^{tmp_path}/checkpoints: no space left on device$"),
        Checkpoints(tmp_path, 1),
    ):
        monkeypatch.setattr(orbax.checkpoint.CheckpointManager, "close", close)


def test_the_newest_checkpoint_is_restored_and_one_that_cannot_be_is_named(state, three):
    assert restored(three, state) == (3, 3, [1, 2, 3])
    largest(three / "checkpoints" / "3" / "state").unlink()
    with Checkpoints(three, keep=3) as checkpoints:
        with pytest.raises(headjax.CheckpointError, match=f"^{three}/checkpoints/3: cannot be restored"):
            checkpoints.restore(checkpoints.latest, state)
        assert checkpoints.steps == [1, 2, 3]
    shutil.rmtree(three / "checkpoints" / "3")
    assert restored(three, state) == (2, 2, [1, 2])
    with Checkpoints(three / "new", keep=3) as checkpoints:
        assert checkpoints.latest is None


def test_checkpoints_of_a_bucket_are_kept_and_restored(state, bucket):
    workdir = path_of(bucket)
    with Checkpoints(workdir, keep=2) as checkpoints:
        save(checkpoints, state, 1, 2, 3)
    (workdir / "checkpoints" / "4" / "state" / "part").write_bytes(b"killed while it was saved")
    assert restored(workdir, state) == (3, 3, [2, 3])


SHAPES = [{"fsdp": 8}, {"fsdp": 4, "model": 2}, {"fsdp": 2, "model": 4}]


@pytest.mark.parametrize("before, after", list(itertools.permutations(SHAPES, 2)), ids=str)
def test_a_checkpoint_is_restored_onto_any_mesh(before, after, tmp_path):
    """Every array comes back bit for bit, and lies where the new mesh wants it."""
    config, optimizer, places = tiny.decoder_config(), optax.adam(0.1), ShardingConfig(misfits="replicate")
    made, wanted = (
        Trainer(config, optimizer, headjax.MeshConfig(**{"data": 1} | sizes).build(), sharding=places).abstract_state()
        for sizes in (before, after)
    )
    numbers = np.random.default_rng(0)
    made = jax.tree.map(
        lambda spec: jax.device_put(numbers.uniform(1, 9, spec.shape).astype(spec.dtype), spec.sharding), made
    )
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, made, {"batch": 1})
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        found, position = checkpoints.restore(1, wanted)
    assert position == {"batch": 1}
    jax.tree.map(np.testing.assert_array_equal, found, made)
    assert jax.tree.map(lambda array: array.sharding, found) == jax.tree.map(lambda array: array.sharding, wanted)
    assert not all(array.sharding.is_fully_replicated for array in jax.tree.leaves(found.params))
