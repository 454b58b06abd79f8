"""Real processes train together, are killed and terminated, and go on as others; what each reads of a batch."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

import headjax
from headjax.core.errors import INTERRUPTED
from headjax.core.programs import Share
from headjax.core.serialize import to_data
from headjax.mesh.distributed import Vote, initialize, process_share
from headjax.training.recording import read_metrics
from tests import tiny
from tests.closeness import assert_trees_close, close_to
from tests.tiny import flatten

ROOT = Path(__file__).resolve().parents[2]
STEPS, EVERY = 200, 10

CONFIG = f"""
from ml_collections import ConfigDict

def get_config(arg=""):
    return ConfigDict({{
        "start": "FOLDER/model",
        "data": {{"task": "FOLDER/text.txt", "length": 16, "tokenizer": "bytes"}},
        "batch_size": 8, "steps": {STEPS}, "log_every": 1, "checkpoint_every": {EVERY}, "keep_checkpoints": 1,
        "optimizer": {{"kind": "adamw", "schedule": {{"kind": "cosine", "peak": 0.003, "warmup_steps": 5}}}},
        "tensorboard": False,
    }})
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A config that goes on from a model directory."""
    folder = tmp_path_factory.mktemp("distributed")
    text = "\n\n".join(f"Paragraph {i} says that {i * i} is the square of {i}." for i in range(200))
    (folder / "text.txt").write_text(text)
    layer = tiny.layer(tiny.multi_head(2, 8, projection_bias=False), hidden=16)
    tiny.model(tiny.decoder_config(layer, vocab_size=257, max_length=16)).save(folder / "model")
    path = folder / "config.py"
    path.write_text(CONFIG.replace("FOLDER", str(folder)))
    return path


def start(config, workdir, logs, *arguments, devices):
    """As many training processes as logs, which meet; their output goes to files, since a full pipe would stop them.

    `workdir` may be a list of folders, one for each process.
    """
    options = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "headjax", "train", "--config", str(config), "--workdir"]
    folders = workdir if isinstance(workdir, list) else [workdir] * len(logs)
    place, started = f"127.0.0.1:{free_port()},{len(logs)}", []
    for index, log in enumerate(logs):
        who = [str(folders[index]), "--distributed", f"{place},{index}"]
        with log.open("wb") as stream:
            started.append(
                subprocess.Popen(
                    [*command, *who, *arguments], env=os.environ | options, cwd=ROOT, stdout=stream, stderr=stream
                )
            )
    return started


@contextlib.contextmanager
def running(config, workdir, logs, *arguments, devices):
    """Processes of `start`, none of which outlives the block."""
    processes = start(config, workdir, logs, *arguments, devices=devices)
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def trained(workdir):
    """The last step on record."""
    return max((record["step"] for record in read_metrics(workdir / "metrics.jsonl")), default=0)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition, processes, logs, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        ended = [p.poll() for p in processes if p.poll() is not None]
        assert not ended, "\n".join(log.read_text()[-2000:] for log in logs)
        assert time.monotonic() < end, "\n".join(log.read_text()[-2000:] for log in logs)
        time.sleep(0.05)


@pytest.mark.processes
@pytest.mark.whole
def test_runs_survive_kills_and_terminations_on_other_processes_and_meshes(config, tmp_path):
    """Four processes, one of them killed; two on another mesh, one terminated; one ends what none disturbed ends with.

    A kill loses the steps since the last checkpoint. A SIGTERM of one process is a checkpoint and a clean end of all.
    """
    workdir = tmp_path / "run"
    logs = [tmp_path / f"four-{index}.log" for index in range(4)]
    with running(config, workdir, logs, devices=1) as four:
        # The first checkpoint is complete: the second was begun.
        wait_until(lambda: trained(workdir) > 2 * EVERY, four, logs)
        four[3].kill()
    killed_at = trained(workdir)
    # One checkpoint is kept: the second may have replaced the first, and not have the record of its sizes yet.
    saved = [int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit()]
    assert max(saved) >= EVERY

    logs = [tmp_path / f"two-{index}.log" for index in range(2)]
    # A slice for each process; 257 tokens do not divide.
    halves = ["--config.mesh.slices=2", "--config.mesh.model=2", "--config.sharding.misfits=replicate"]
    traced = ["--profile-steps", f"{killed_at + 1}:{killed_at + 1}"]
    with running(config, workdir, logs, *halves, *traced, devices=2) as two:
        wait_until(lambda: trained(workdir) > killed_at, two, logs)
        two[1].send_signal(signal.SIGTERM)
        codes = [process.wait(timeout=60) for process in two]
        assert codes == [INTERRUPTED, INTERRUPTED], "\n".join(log.read_text() for log in logs)
    steps = [int(re.search(r"interrupted after step (\d+)", log.read_text())[1]) for log in logs]
    assert steps[0] == steps[1]
    assert killed_at < steps[0] < STEPS
    assert (workdir / "checkpoints" / str(steps[0])).exists()
    assert list((workdir / "tensorboard" / "plugins" / "profile").glob("*/*.xplane.pb"))

    fsdp = headjax.load_config(str(config), ["--config.mesh.data=2", "--config.mesh.fsdp=4"])
    continued = headjax.train(headjax.train_config(fsdp), workdir)
    whole = headjax.train(headjax.train_config(headjax.load_config(str(config))), tmp_path / "whole")
    assert continued.metrics["loss"] == close_to(whole.metrics["loss"], sums=STEPS * 2 * tiny.SUMS)
    ours, theirs = flatten(continued.model.params), flatten(whole.model.params)
    # Adam divides a gradient's rounding by its size: any parameter may move like the largest.
    assert_trees_close(ours, theirs, sums=STEPS * 2 * tiny.SUMS, floor=1.0)
    recorded = [record["step"] for record in read_metrics(workdir / "metrics.jsonl") if "train/loss" in record]
    assert recorded == list(range(1, STEPS + 1))


@pytest.mark.processes
@pytest.mark.whole
def test_hosts_that_do_not_share_the_workdir_end_in_a_line(config, tmp_path):
    """The second one even holds a run of the same config."""
    folders, logs = [tmp_path / "here", tmp_path / "there"], [tmp_path / f"{index}.log" for index in range(2)]
    folders[1].mkdir()
    (folders[1] / "train_config.json").write_text(
        json.dumps(to_data(headjax.train_config(headjax.load_config(str(config)))))
    )
    two = start(config, folders, logs, devices=1)
    for process, folder, log in zip(two, folders, logs, strict=True):
        assert process.wait(timeout=120) == 2, log.read_text()[-2000:]
        last = log.read_text().splitlines()[-1]
        expected = f"{folder}: not the same folder for process 1 as for process 0; all hosts must share it"
        assert last == f"headjax: error: {expected}"
    assert not list(tmp_path.glob("*/.seen-*"))


def test_a_lone_process_reads_every_row_and_decides_alone():
    mesh = headjax.MeshConfig(data=2, fsdp=2, model=2).build()
    assert process_share(mesh) == Share(0, 1)
    assert [Vote(mesh)(wish) for wish in (False, True, False)] == [False, True, False]


class Device:
    def __init__(self, process_index):
        self.process_index = process_index


class Place:
    """A batch sharding over devices of several processes."""

    def __init__(self, rows):
        self.rows = rows

    def devices_indices_map(self, shape):
        return {Device(process): (slice(*rows),) for process, rows in self.rows}


@pytest.mark.parametrize(
    "rows, process, expected",
    [
        ([(0, (0, 2)), (0, (2, 4)), (1, (4, 6)), (1, (6, 8))], 1, Share(1, 2)),
        ([(0, (0, 2)), (1, (2, 4)), (0, (4, 6)), (1, (6, 8))], 1, Share(1, 2)),  # interleaved, as hosts' chips are
        ([(0, (0, 8)), (1, (0, 8))], 1, Share(0, 1)),  # a model axis over the processes
        ([(0, (0, 4)), (1, (0, 4)), (2, (4, 8)), (3, (4, 8))], 2, Share(1, 2)),
    ],
)
def test_processes_read_what_their_devices_hold(rows, process, expected, monkeypatch):
    monkeypatch.setattr("headjax.mesh.distributed.batch_sharding", lambda mesh: Place(rows))
    monkeypatch.setattr(jax, "process_index", lambda: process)
    assert process_share(headjax.MeshConfig(data=8).build()) == expected

    overlapping = [(0, (0, 4)), (1, (2, 6)), (1, (6, 8))]
    monkeypatch.setattr("headjax.mesh.distributed.batch_sharding", lambda mesh: Place(overlapping))
    with pytest.raises(headjax.HeadjaxError, match=r"^mesh: "):
        process_share(headjax.MeshConfig(data=8).build())


@pytest.mark.parametrize(
    "spec", ["", "host", "host,2,0", "host:1,2,2", "host:1,two,0", "host:1,\u00b2,0", "host:1," + "9" * 5000 + ",0"]
)
def test_an_unreadable_spec_is_an_error(spec):
    with pytest.raises(headjax.HeadjaxError, match=r"^--distributed: "):
        initialize(spec)
