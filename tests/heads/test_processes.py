"""Heads are scored by several processes, each with its part of every batch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import headjax
from tests import tiny
from tests.closeness import assert_close
from tests.mesh.test_distributed import free_port

pytestmark = pytest.mark.whole

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import json, sys
import jax
from headjax.mesh.distributed import initialize
initialize(sys.argv[1])
from headjax.heads.scoring import score_heads
from headjax.mesh.mesh import MeshConfig, replicated
from headjax.mesh.distributed import put_batch
from tests import tiny

mesh = MeshConfig(data=2).build()
own = slice(2 * jax.process_index(), 2 * jax.process_index() + 2)
model = tiny.model(tiny.decoder_config())
model = model.replace(params=jax.device_put(model.params, replicated(mesh)))
batches = [put_batch({name: array[own] for name, array in tiny.tokens(4, 8).items()}, mesh)]
scores = score_heads(model, batches)
print(json.dumps({name: list(values.values()) for name, values in scores.values.items()}))
"""


@pytest.mark.processes
def test_two_processes_find_what_one_finds():
    place = f"127.0.0.1:{free_port()},2"
    options = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, f"{place},{index}"],
            env=os.environ | options, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        for index in range(2)
    ]  # fmt: skip
    try:
        printed = [process.communicate(timeout=300)[0].splitlines()[-1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    model, batches = tiny.model(tiny.decoder_config()), [tiny.tokens(4, 8)]
    for scores in printed:
        for name, values in headjax.score_heads(model, batches).values.items():
            assert_close(json.loads(scores)[name], list(values.values()), sums=2 * tiny.SUMS, message=name)
