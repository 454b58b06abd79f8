"""A run of 20,000 steps: memory, open files and compiled programs level off, and steps stay as fast."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiny
from tests.commands.language_folder import write_language_folder

STEPS = 20_000

LEVEL = 8.0
"""MiB by which the most memory of the second half may be above that of the first half."""

SLOWER = 1.5
"""Times as long that a thousand steps in the end may take: the fastest hundred counts, as other programs run beside."""

TRAINED = """
import contextlib, json, os, sys, time
import jax
from headjax.training.config import train_config
from headjax.training.config_file import load_config
from headjax.training.loop import train

programs, samples, page = [0], [], os.sysconf("SC_PAGE_SIZE")

def compiled(event, seconds, **_):
    programs[0] += event == "/jax/core/compile/backend_compile_duration"

jax.monitoring.register_event_duration_secs_listener(compiled)

@contextlib.contextmanager
def measured(label, total, unit):
    def update(step, values):
        if label == "training" and step % 100 == 0:
            memory = int(open("/proc/self/statm").read().split()[1]) * page
            samples.append((step, memory, len(os.listdir("/proc/self/fd")), programs[0], time.perf_counter()))
    yield update

config, workdir, steps = sys.argv[1:]
train(train_config(load_config(config, (f"--config.steps={steps}",))), workdir, progress=measured)
print(json.dumps(samples))
"""

CONFIG = tiny.config_file(
    model=None, start="model", data={"task": "text.txt", "length": 16},
    steps=1, log_every=10, checkpoint_every=500, evaluate_every=1000, keep_checkpoints=2, keep="best", tensorboard=True,
)  # fmt: skip


@pytest.mark.attack
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads a process's memory in /proc")
def test_twenty_thousand_steps(tmp_path):
    write_language_folder(tmp_path, max_length=16)
    (tmp_path / "config.py").write_text(CONFIG)
    words = [sys.executable, "-c", TRAINED, "config.py", "run", str(STEPS)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(words, check=True, capture_output=True, text=True, cwd=tmp_path, env=environment)
    samples = json.loads(done.stdout.splitlines()[-1])
    memory = {step: size / 2**20 for step, size, *_ in samples}
    files = {step: count for step, _, count, *_ in samples}
    programs = {step: count for step, _, _, count, _ in samples}
    clock = {step: seconds for step, *_, seconds in samples}
    first, last = (min(clock[step] - clock[step - 100] for step in steps) * 10 for steps in (
        range(1100, 2001, 100), range(STEPS - 900, STEPS + 1, 100)
    ))  # fmt: skip
    half = STEPS // 2
    before, after = (
        max(size for step, size in memory.items() if low < step <= high) for low, high in ((1000, half), (half, STEPS))
    )
    assert programs[STEPS] == programs[2000]
    assert max(files.values()) <= files[2000] + 8
    assert files[STEPS] <= files[2000] + 2
    assert after <= before + LEVEL
    assert last <= SLOWER * first
