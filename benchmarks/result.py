"""What a benchmark returns, the machine it was measured on, and runs in processes of their own."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from headjax.core import numbers
from headjax.core.errors import HeadjaxError
from headjax.core.timing import processor_model, usable_cores
from headjax.report.drawing import Plot
from headjax.report.tables import Column, Table
from headjax.version import __version__

SPREAD = (
    Column("Median", numbers.duration, "lower"),
    Column("First quartile", numbers.duration),
    Column("Third quartile", numbers.duration),
)
"""Columns of the first three fields of a `Timing`."""

X86 = ("SSE4_2", "AVX", "AVX2", "FMA", "AVX512", "AVX512_VNNI", "AVX512_BF16", "AVX512_FP16")
INSTRUCTION_SETS = (*X86, "AMX", "AMX_BF16", "AMX_INT8", "NEON", "SVE", "SVE2")
"""Vector and matrix instructions of x86-64 and ARM that are named."""
LINUX_NAMES = {"AVX512": "avx512f", "AMX": "amx_tile"}
"""What /proc/cpuinfo calls those whose name is not in lower case there; NEON is `asimd` on 64-bit ARM."""

BLAS_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
THREAD_VARIABLES = ("XLA_FLAGS", *BLAS_VARIABLES, "NPROC", "KMP_AFFINITY", "KMP_BLOCKTIME")
"""Environment variables that change how many threads the libraries take, or what they compute with."""


RESIDENT = 1 if sys.platform == "darwin" else 1024
"""Bytes of the unit in which the system counts the most memory of a process."""


class BenchResult(NamedTuple):
    """A measurement beside a peer's, both taken in one run on one machine.

    Attributes:
        ours: measurements of headjax, by quantity, with units in the names.
        peer: measurements of the peer.
        ratio: ours over the peer's in the headline quantity; below 1 is better. None where there is no peer.
        tables: the same for people.
        peers: distributions that the peer is made of, whose versions are reported.
        plot: a picture of the measurements, of benchmarks that draw one.
    """

    ours: Mapping[str, Any]
    peer: Mapping[str, Any]
    ratio: float | None
    tables: tuple[Table, ...]
    peers: tuple[str, ...] = ()
    plot: Plot | None = None


def pytorch(bench: str) -> tuple[Any, Any]:
    """Import PyTorch and transformers.

    Args:
        bench: name of the benchmark that needs them.

    Raises:
        HeadjaxError: one of them is not installed.
    """
    try:
        return importlib.import_module("torch"), importlib.import_module("transformers")
    except ImportError as error:
        raise HeadjaxError(f"bench {bench}: needs the parity extra ({error.name} is not installed)") from None


def instruction_sets(cpuinfo: str) -> list[str]:
    """Return those of `INSTRUCTION_SETS` that the text of /proc/cpuinfo lists; all cores are taken to be alike."""
    fields = _fields(cpuinfo)
    flags = f"{fields.get('flags', '')} {fields.get('features', '')}".replace("asimd", "neon").split()
    return [name for name in INSTRUCTION_SETS if LINUX_NAMES.get(name, name.lower()) in flags]


def _fields(cpuinfo: str) -> dict[str, str]:
    """The fields of the first core."""
    pairs = (line.partition(":") for line in reversed(cpuinfo.splitlines()))
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def load() -> float | None:
    """Return the processes that ran or waited for a core in the last minute; None where the system cannot tell."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def machine(peers: Sequence[str] = (), load_before: float | None = None) -> dict[str, Any]:
    """Return a description of this machine, as JSON data.

    Args:
        peers: distributions that were measured beside headjax, whose versions count too.
        load_before: `load` before the measurement.
    """
    file = Path("/proc/cpuinfo")
    cpuinfo = file.read_text() if file.is_file() else ""
    device = jax.devices()[0]
    threads: dict[str, Any] = {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ}
    if "torch" in peers:
        threads["torch"] = importlib.import_module("torch").get_num_threads()
    return {
        "device": device.device_kind,
        "platform": device.platform,
        "processor": platform.machine(),
        "processor_model": processor_model(),
        "instruction_sets": instruction_sets(cpuinfo),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "load_before": load_before,
        "load_after": load(),
        "threads": threads,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "headjax": __version__,
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy", *peers)},
    }


def machine_table(found: Mapping[str, Any]) -> Table:
    """Return `machine`'s result as a table."""
    loads = ["unknown" if one is None else f"{one:.2f}" for one in (found["load_before"], found["load_after"])]
    versions = {"python": found["python"], "headjax": found["headjax"], **found["versions"]}
    rows = [
        ("processor", f"{found['processor_model']} ({found['processor']})"),
        ("instruction sets", " ".join(found["instruction_sets"]) or "unknown"),
        ("cores used", f"{found['usable_cores']} of {found['cores']}"),
        ("load before, after", ", ".join(loads)),
        ("threads", ", ".join(f"{name}={value}" for name, value in found["threads"].items()) or "each library's own"),
        ("device", f"{found['device']} ({found['platform']})"),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
    ]
    note = "Load: processes that ran or waited for a core, averaged over a minute; afterwards with the benchmark's own."
    return Table((Column("Machine"), Column("")), rows, notes=(note,))


def peak_bytes() -> int:
    """Return the most memory that this process has held so far."""
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    return RESIDENT * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def in_new_process(function: Callable[..., None], name: str, *arguments: str) -> dict[str, Any]:
    """Return the JSON that a function of a benchmark prints in a new process.

    Args:
        function: the function, by which the process finds it.
        name: its first argument, the name of the side that it measures.
        arguments: its other arguments.

    Raises:
        HeadjaxError: the process failed; the message is the last line of its errors.
    """
    code = f"from {function.__module__} import {function.__name__}; {function.__name__}{(name, *arguments)!r}"
    root = str(Path(__file__).resolve().parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["failed"])[-1]
        raise HeadjaxError(f"{function.__module__.rpartition('.')[2]}: {name}: {reason}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
