"""What is written when, and what is on record of it."""

import errno
import itertools
import json
import os
import re
import shutil
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import headjax
from headjax.cli import main
from headjax.core.errors import CheckpointError, DamagedError, HeadjaxError
from headjax.mesh.mesh import MeshConfig
from headjax.mesh.rules import ShardingConfig
from headjax.storage import integrity
from headjax.storage.files import DELETED
from headjax.storage.paths import path_of
from headjax.training.checkpoints import SHARED_FROM, Checkpoints
from headjax.training.state import TrainState, abstract_state
from tests import tiny


@pytest.fixture
def state():
    return TrainState(jnp.int32(1), {"weight": jnp.ones((64, 64))}, {"moment": jnp.zeros((64, 64))})


def save(checkpoints, state, *steps):
    for step in steps:
        checkpoints.save(step, state._replace(step=jnp.int32(step)), {"batch": step})


def restored(workdir, state):
    """The step of the newest intact checkpoint, the batch recorded with it, and the steps that are left."""
    with Checkpoints(workdir, keep=3) as checkpoints:
        found, position = checkpoints.restore_newest(state)
        return int(found.step), position["batch"], checkpoints.steps


def wait_for(path, meanwhile=lambda: None, seconds=60):
    """Wait until something stands under its name, as steps of training go by."""
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.01)
        meanwhile()


def flip(file, position=-1):
    """Flip a bit of a file."""
    content = bytearray(file.read_bytes())
    content[position] ^= 16
    file.write_bytes(content)


def files_of(checkpoint):
    return [path for path in sorted(checkpoint.rglob("*")) if path.is_file() and path.name != "checksums.json"]


def largest(folder):
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


@pytest.fixture
def three(state, tmp_path):
    """A workdir with the checkpoints of steps 1, 2 and 3."""
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        save(checkpoints, state, 1, 2, 3)
    return tmp_path


def test_a_run_that_is_killed_has_the_record_of_its_last_checkpoint(state, tmp_path):
    """Without another save and without a clean end, which both wait for the checkpoint that is being written."""
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        for step in (1, 2):
            save(checkpoints, state, step)
            wait_for(checkpoints.path / str(step))
            checkpoints.record_complete()
            wait_for(checkpoints.path / str(step) / "checksums.json")
        found, position = checkpoints.restore(2, state)
        assert int(found.step) == position["batch"] == 2
        file = largest(checkpoints.path / "2" / "state")
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.raises(CheckpointError, match=f"{file}: .*truncated"):
            checkpoints.restore(2, state)


def test_a_checkpoint_that_cannot_begin_fails_at_once_and_leaves_no_thread(state, tmp_path):
    """Threads that waited for its folder would hold up the end of the process for minutes."""
    before = set(threading.enumerate())
    with Checkpoints(tmp_path, 1) as checkpoints:
        checkpoints.path.rmdir()
        checkpoints.path.touch()
        with pytest.raises(HeadjaxError, match=r"checkpoints.*: not a directory"):
            save(checkpoints, state, 1)
    left = [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]
    assert all(thread.name.startswith("asyncio") for thread in left)  # an executor's, which end with the process


def test_a_checkpoint_goes_as_a_whole_and_its_files_after_that(state, tmp_path, monkeypatch):
    """A run that is killed while one is deleted leaves none in parts, and the next run deletes the rest."""

    def killed(path, **options):
        assert DELETED in (path.name, path.parent.name)
        next(file for file in path.rglob("*") if file.is_file()).unlink()

    with monkeypatch.context() as replaced, Checkpoints(tmp_path, keep=1) as checkpoints:
        replaced.setattr(shutil, "rmtree", killed)
        save(checkpoints, state, 1, 2)
        checkpoints._finish()
        checkpoints._recorder.shutdown()
        assert sorted(path.name for path in checkpoints.path.iterdir()) == [DELETED, "2"]
        assert [path.name for path in (checkpoints.path / DELETED).iterdir()] == ["1"]
        assert main(["verify", str(tmp_path)]) == 0
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.record_complete()
        checkpoints._recorder.shutdown()
        assert not list((checkpoints.path / DELETED).iterdir())
        assert checkpoints.steps == [2]
    assert [path.name for path in checkpoints.path.iterdir()] == ["2"]


def test_a_save_that_fails_while_the_run_ends_names_the_folder(state, tmp_path, monkeypatch):
    """Orbax raises what its threads met once more when it is closed, and that names no file."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close():
        raise full

    checkpoints = Checkpoints(tmp_path, 1)
    monkeypatch.setattr(checkpoints._manager, "close", close)
    with pytest.raises(HeadjaxError, match=f"^{tmp_path}/checkpoints: no space left on device$"), checkpoints:
        pass


@pytest.mark.parametrize("position", [-1, *(pytest.param(at, marks=pytest.mark.attack) for at in range(12))])
def test_flipped_bits_of_every_file_of_a_checkpoint_are_found(position, state, three):
    """Neither another state nor another position in the data is ever restored; the record itself is left out here."""
    files = files_of(three / "checkpoints" / "3")
    assert any("position" in path.parts for path in files)
    with Checkpoints(three, keep=3) as checkpoints:
        for file in files:
            content = file.read_bytes()
            flip(file, position % len(content)) if content else file.write_bytes(b"0")
            with pytest.raises(DamagedError) as caught:
                checkpoints.restore(3, state)
            assert str(caught.value).startswith(f"{file}: ")
            file.write_bytes(content)
        assert checkpoints.restore(3, state)[1] == {"batch": 3}


def test_the_newest_intact_checkpoint_is_restored_and_damaged_ones_are_kept_aside(state, three):
    damaged = [largest(three / "checkpoints" / step / "state") for step in "23"]
    for file in damaged:
        flip(file)
    with Checkpoints(three, keep=3) as checkpoints:
        with pytest.warns(UserWarning, match="going on from step 1") as caught:
            found, position = checkpoints.restore_newest(state)
        assert int(found.step) == position["batch"] == 1
        for warning, file in zip(caught, reversed(damaged), strict=True):
            expected = f"{file}: damaged.*going on from step 1, .* kept in .*checkpoints.damaged"
            assert re.match(expected, str(warning.message))
        assert checkpoints.steps == [1]
        save(checkpoints, state, 2)  # the run comes to these steps again
    assert sorted(path.name for path in (three / "checkpoints.damaged").iterdir()) == ["2", "3"]
    assert restored(three, state) == (2, 2, [1, 2])


def test_without_an_intact_checkpoint_nothing_is_restored_or_moved(state, three):
    for step in "123":
        flip(next(iter(files_of(three / "checkpoints" / step))))
    with Checkpoints(three, keep=3) as checkpoints:
        with pytest.raises(DamagedError, match="checkpoints/3/"):
            checkpoints.restore_newest(state)
        assert checkpoints.steps == [1, 2, 3]
    with Checkpoints(three / "new", keep=3) as checkpoints:
        assert checkpoints.restore_newest(state) is None


def test_checkpoints_without_checksums_are_restored_or_passed_over(state, three):
    """As an earlier headjax, or a run that was killed at that moment, left them."""
    for step in "123":
        (three / "checkpoints" / step / "checksums.json").unlink()
    assert restored(three, state)[:2] == (3, 3)
    for file in files_of(three / "checkpoints" / "3" / "state"):
        file.write_bytes(b"")
    with pytest.warns(UserWarning, match="checkpoints/3: cannot be restored"):
        assert restored(three, state)[:2] == (2, 2)


def test_a_checkpoint_of_a_later_format_says_what_to_install(state, three):
    """It is not damaged: neither set aside nor passed over for an older one."""
    file = three / "checkpoints" / "3" / "position" / "metadata"
    position = json.loads(file.read_text())
    assert position == {"format": 1, "headjax": headjax.__version__, "batch": 3}
    file.write_text(json.dumps(position | {"format": 2, "headjax": "9.0.0"}))
    integrity.write_record(three / "checkpoints" / "3")
    with Checkpoints(three, keep=3) as checkpoints:
        with pytest.raises(CheckpointError, match=r"checkpoints/3: ") as caught:
            checkpoints.restore_newest(state)
        assert not isinstance(caught.value, DamagedError)
        assert checkpoints.steps == [1, 2, 3]
    # From before there were formats.
    file.write_text(json.dumps({"batch": 3}))
    integrity.write_record(three / "checkpoints" / "3")
    assert restored(three, state)[:2] == (3, 3)


SHAPES = [{"fsdp": 8}, {"fsdp": 4, "model": 2}, {"fsdp": 2, "model": 4}]


@pytest.mark.parametrize("before, after", list(itertools.permutations(SHAPES, 2)), ids=str)
def test_a_checkpoint_is_restored_onto_any_mesh(before, after, tmp_path):
    """Every array comes back bit for bit, and lies where the new mesh wants it."""
    config, optimizer, places = tiny.decoder_config(), optax.adam(0.1), ShardingConfig(misfits="replicate")
    made, wanted = (
        abstract_state(config, optimizer, MeshConfig(**{"data": 1} | sizes).build(), places)
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


def test_checkpoints_of_a_bucket_are_recorded_restored_and_set_aside(state, bucket):
    workdir = path_of(bucket)
    with Checkpoints(workdir, keep=2) as checkpoints:
        save(checkpoints, state, 1, 2, 3)
        wait_for(checkpoints.path / "3" / "checksums.json", checkpoints.record_complete)
    file = largest(workdir / "checkpoints" / "3" / "state")
    (workdir / "checkpoints" / "4" / "state" / "part").write_bytes(b"killed while it was saved")
    file.write_bytes(file.read_bytes()[:-1])
    with Checkpoints(workdir, keep=2) as checkpoints:
        assert checkpoints.steps == [2, 3]
    with pytest.warns(UserWarning, match=r"checkpoints/3/state/.* going on from step 2, .*checkpoints.damaged/3"):
        assert restored(workdir, state) == (2, 2, [2])
    assert (workdir / "checkpoints.damaged" / "3" / "checksums.json").exists()
