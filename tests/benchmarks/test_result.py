"""What a benchmark says of the machine it ran on, and processes of its own."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import io
import json
import subprocess

import jax
import pytest

from benchmarks.hub import report
from benchmarks.result import in_new_process, instruction_sets, machine, machine_table
from headjax.core.errors import HeadjaxError

INTEL = """processor\t: 0
model name\t: Intel(R) Xeon(R) Processor
flags\t\t: fpu sse4_2 avx avx2 fma avx512f avx512_bf16 amx_tile amx_bf16

processor\t: 1
model name\t: Intel(R) Xeon(R) Processor
flags\t\t: fpu sse4_2
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\n"


def test_the_processor_is_read_from_what_linux_says_of_it():
    assert instruction_sets(INTEL) == ["SSE4_2", "AVX", "AVX2", "FMA", "AVX512", "AVX512_BF16", "AMX", "AMX_BF16"]
    assert instruction_sets(ARM) == ["NEON", "SVE"]
    assert instruction_sets("") == []


def test_the_machine_names_versions_cores_load_and_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    peers = ("optax", "torch") if importlib.util.find_spec("torch") else ("optax",)
    found = machine(peers=peers, load_before=1.5)
    assert found["versions"] == {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy", *peers)}
    assert 1 <= found["usable_cores"] <= found["cores"]
    assert found["load_before"] == 1.5
    assert found["load_after"] >= 0
    assert found["threads"]["OMP_NUM_THREADS"] == "3"
    assert ("torch" in found["threads"]) == ("torch" in peers)
    assert found["device"] == jax.devices()[0].device_kind
    rows = dict(machine_table(found).rows)
    assert rows["versions"].endswith(f"{peers[-1]} {found['versions'][peers[-1]]}")
    assert "OMP_NUM_THREADS=3" in rows["threads"]


def print_twice(name, text):
    """For a process of its own."""
    print(json.dumps({"name": name, "text": 2 * text}))


def test_a_function_is_called_in_a_process_of_its_own(monkeypatch):
    monkeypatch.setattr("subprocess.run", run_here)
    assert in_new_process(print_twice, "it's", '"a" b') == {"name": "it's", "text": '"a" b"a" b'}


def run_here(command, **_):
    """Runs the code of a command in this process, where this file can be imported."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(command[2].partition("; ")[2], {"print_twice": print_twice})
    return subprocess.CompletedProcess(command, 0, out.getvalue(), "")


def test_a_failed_process_is_the_last_line_of_its_errors():
    with pytest.raises(HeadjaxError, match=r"^hub: nothing: KeyError: 'nothing'$"):
        in_new_process(report, "nothing", "nowhere")
