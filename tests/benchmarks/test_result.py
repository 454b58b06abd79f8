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

from benchmarks import result as results
from benchmarks.hub import read_and_report
from benchmarks.result import BenchResult, in_new_process, machine, machine_table, measure, processor
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
    found = processor(INTEL)
    assert found.model == "Intel(R) Xeon(R) Processor"
    assert found.instruction_sets == (
        "SSE4_2",
        "AVX",
        "AVX2",
        "FMA",
        "AVX512",
        "AVX512_BF16",
        "AMX",
        "AMX_BF16",
    )
    assert processor(ARM).instruction_sets == ("NEON", "SVE")


def test_a_system_without_the_file_still_names_an_architecture():
    assert processor("").model
    assert processor("").instruction_sets == ()


def test_the_machine_names_versions_cores_load_and_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = machine(peers=("optax",), load_before=1.5)
    assert found["versions"] == {n: importlib.metadata.version(n) for n in ("jax", "jaxlib", "numpy", "optax")}
    assert 1 <= found["usable_cores"] <= found["cores"]
    assert found["load_before"] == 1.5
    assert found["load_after"] >= 0
    assert found["threads"]["OMP_NUM_THREADS"] == "3"
    assert found["device"] == jax.devices()[0].device_kind
    rows = dict(machine_table(found).rows)
    assert rows["versions"].endswith(f"optax {found['versions']['optax']}")
    assert "OMP_NUM_THREADS=3" in rows["threads"]


def test_pytorch_says_how_many_threads_it_takes():
    pytest.importorskip("torch")
    found = machine(peers=("torch",), load_before=0.0)
    assert found["threads"]["torch"] >= 1
    assert found["versions"]["torch"] == importlib.metadata.version("torch")


def test_the_load_is_that_before_the_benchmark(monkeypatch):
    loads = iter([0.25, 7.0])
    monkeypatch.setattr(results, "load", lambda: next(loads))
    measured = measure(lambda progress: BenchResult({"a": 1}, {}, 0.5, (), ("optax",)))
    assert measured.machine["load_before"] == 0.25
    assert measured.to_json()["ours"] == {"a": 1}


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
        in_new_process(read_and_report, "nothing", "nowhere")
