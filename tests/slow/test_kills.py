"""Commands are killed at random moments: whoever reads meanwhile gets no half of anything, and the end is the same."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from headjax.core.errors import CheckpointError, DamagedError
from headjax.storage.paths import files_below, path_of, remove_tree
from headjax.training.recording import read_metrics
from tests import buckets
from tests.slow import writers
from tests.slow.victims import Reader, finish, killed, start
from tests.slow.writers import WRITERS

STEPS = 20
TRAIN = WRITERS["train"].words.replace(":6", f":{STEPS}")

LOCAL = {"prepare": 25, "export": 25, "prune": 30, "report": 20, "train": 40}
BUCKET = {"prepare": 10, "export": 10, "prune": 15, "report": 5, "train": 20}
"""Kills of `make attack`, 200 together."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kills") / "in"
    writers.write_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    """Variables of all victims: programs are compiled once for all of them."""
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(tmp_path_factory.mktemp("compiled"))
    least = ("MIN_COMPILE_TIME_SECS", "MIN_ENTRY_SIZE_BYTES")
    return {"JAX_COMPILATION_CACHE_DIR": cache, **{f"JAX_PERSISTENT_CACHE_{name}": "0" for name in least}}


def attack(name: str, kills: int, out: Path, inputs: Path, folder: Path, environment: Mapping[str, str]) -> None:
    """Kill a command at random moments, half of them over its whole time and half while it writes.

    A run of training or of preparation goes on from what a kill has left; other commands replace an older result.
    """
    rng, log = np.random.default_rng([len(name), kills]), folder / "log"
    writer = WRITERS[name]._replace(words=TRAIN) if name == "train" else WRITERS[name]
    words = [writer.command(inputs, out)]
    finish(start(words[0], log, environment), log)
    known = [writer.read(out)]
    remove_tree(out)
    whole, writing = measure(words[0], out, log, environment)
    if writer.before:
        words.append([*writer.command(inputs, out, before=True), "--overwrite"])
        finish(start(words[1], log, environment), log)
        known.append(writer.read(out))
    reader = Reader(out, environment)
    count = ends = 0
    try:
        for number in itertools.count():
            if count == kills:
                break
            began, command = state(out), words[number % len(words)]
            process = start(command, log, environment)
            if rng.random() < 0.5:
                hit = killed(process, rng.uniform(0, whole), None, log)
            else:
                hit = killed(process, rng.uniform(0, writing), lambda: state(out) != began, log)  # noqa: B023
            count, ends = count + hit, ends + (not hit)
            writers.check_files(out)
            found = result(writer, out)
            allowed = [*known, None] if len(words) == 1 or is_cloud(out) else known
            assert found in (allowed if hit else [known[number % len(words)]]), (name, count, found)
            if not hit and len(words) == 1:
                if name == "train":
                    check_run(out)
                with reader.resting:
                    remove_tree(out)
        finish(start(words[0], log, environment), log)
    finally:
        readings, wrong = reader.end()
    assert not wrong, wrong
    assert writer.read(out) == known[0]
    assert not [file for file in files_below(path_of(str(out).rpartition("/")[0])) if "@" in file]
    if name == "train":
        check_run(out)
    print(f"{name} in {out}: {count} kills, {ends} had ended before, read {readings} times meanwhile")


def result(writer: writers.Writer, out: Path) -> object:
    """What a reader finds; None also for a folder of a bucket that no command reads, and the next save replaces."""
    try:
        return writer.read(out)
    except CheckpointError as error:
        if isinstance(error, DamagedError) or not is_cloud(out):
            raise
        return None


def is_cloud(out: Path) -> bool:
    return str(out).startswith("gs:")


def state(out: Path) -> object:
    """Names of all files, hidden ones too, by which it shows that a command has begun to write."""
    above = out if is_cloud(out) else out.parent
    try:
        return files_below(above)
    except FileNotFoundError:  # a file that went away while it was looked at
        return time.monotonic()


def measure(words: list[str], out: Path, log: Path, environment: Mapping[str, str]) -> tuple[float, float]:
    """Return the seconds that a command takes, and those from its first file on."""
    before, begun = state(out), time.monotonic()
    process = start(words, log, environment)
    while process.exitcode is None and state(out) == before:
        time.sleep(0.002)
    writing = time.monotonic()
    finish(process, log)
    ended = time.monotonic()
    return ended - begun, ended - writing


def check_run(out: Path) -> None:
    """Check that a finished run has every step once in its records, and no more than it should in its folder."""
    records = read_metrics(out / "run" / "metrics.jsonl")
    for kind in ("train/loss", "validation/loss"):
        steps = [record["step"] for record in records if kind in record]
        assert steps == sorted(set(steps)), (kind, steps)
    if not is_cloud(out):  # a bucket may have lost those of half a minute
        assert [record["step"] for record in records if "train/loss" in record] == list(range(1, STEPS + 1))
    there = {path.name for path in (out / "run" / "checkpoints").iterdir()}
    assert there == {str(STEPS - 2), str(STEPS)}


FEW = [(name, 2) for name in LOCAL if name != "report"]  # one file, as full disks have it
MANY = [pytest.param(*each, marks=pytest.mark.attack) for each in LOCAL.items()]


@pytest.mark.parametrize(("name", "kills"), FEW + MANY)
def test_kills_on_a_disk(name, kills, inputs, environment, tmp_path):
    attack(name, kills, tmp_path / "work" / "out", inputs, tmp_path, environment)


@pytest.mark.attack
@pytest.mark.parametrize("name", BUCKET)
def test_kills_in_a_bucket(name, inputs, environment, bucket, tmp_path):
    names = {name: os.environ[name] for name in (*buckets.CLIENTS, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT")}
    out = path_of(bucket) / "out"
    attack(name, BUCKET[name], out, inputs, tmp_path, environment | names)
