"""The Pallas kernels compile for a TPU v5e and v6e, which needs libtpu but no TPU."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "0",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "PYTHONPATH": str(Path(__file__).parents[3]),
}
SCRIPT = Path(__file__).with_name("compile_for_tpu.py")
ROOT = SCRIPT.parents[3]


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("compiling for a TPU needs libtpu: pip install 'headjax[tpu]'")
    command, environment = [sys.executable, str(SCRIPT)], os.environ | ENVIRONMENT
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_splash_compiles_in_both_types(compiled):
    assert "splash" in compiled["splash float32"]["kernels"]
    assert "splash" in compiled["splash bfloat16"]["kernels"]


@pytest.mark.parametrize("generation", ["v5e", "v6e"])
def test_splash_compiles_for_every_formulation_that_can_take_it(generation, compiled):
    """Not where a bias is added to the logits."""
    found = compiled[f"every formulation {generation}"]
    assert found["refused"] == ["collaborative"]
    assert found["layers"] == 13
    # Forward, and backward for queries and for keys or for both at once.
    assert found["calls"] >= 2 * found["layers"]


def test_our_kernel_compiles_forward_and_backward(compiled):
    whole = ["collaborative_forward", "collaborative_backward_queries", "collaborative_backward_keys"]
    for name in ("ours float32", "ours bfloat16", "ours long", "ours spread"):
        assert compiled[name]["kernels"] == whole


def test_our_kernel_holds_no_query_per_head(compiled):
    # One query per head would be 2 x 2048 x 12 x 384 numbers of 2 bytes; the reference holds logits besides.
    queries_per_head = 2 * 2048 * 12 * 384 * 2
    assert compiled["ours long"]["temporary_bytes"] < queries_per_head
    assert compiled["einsum long"]["temporary_bytes"] > 4 * queries_per_head
