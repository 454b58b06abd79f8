"""Results of benchmarks, and the machine they were measured on: processor, cores, load, threads and versions."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from headjax.core.errors import HeadjaxError
from headjax.core.progress import Progress, silent
from headjax.report.tables import Column, Table
from headjax.version import __version__

if TYPE_CHECKING:
    from headjax.report.style import Plot


class BenchResult(NamedTuple):
    """A measurement beside a peer's, both taken in one run on one machine.

    Attributes:
        ours: measurements of headjax, by quantity, with units in the names.
        peer: measurements of the peer.
        ratio: ours over the peer's in the headline quantity; below 1 is better.
        tables: the same for people.
        peers: distributions that the peer is made of, whose versions are reported.
        plot: a picture of the measurements, of benchmarks that draw one.
    """

    ours: Mapping[str, Any]
    peer: Mapping[str, Any]
    ratio: float
    tables: tuple[Table, ...]
    peers: tuple[str, ...] = ()
    plot: Plot | None = None


class Measured(NamedTuple):
    """A benchmark's result and the machine it was taken on.

    Attributes:
        result: the result.
        machine: see `benchmarks.machine.machine`.
    """

    result: BenchResult
    machine: Mapping[str, Any]

    @property
    def tables(self) -> tuple[Table, ...]:
        """The result's tables, and the machine's."""
        return (*self.result.tables, machine_table(self.machine))

    def to_json(self) -> dict[str, Any]:
        """Both as JSON data."""
        ours, peer, ratio = dict(self.result.ours), dict(self.result.peer), self.result.ratio
        return {"ours": ours, "peer": peer, "ratio": ratio, "machine": dict(self.machine)}


def measure(run: Callable[[Progress], BenchResult], progress: Progress = silent) -> Measured:
    """Run a benchmark; the load is read before and after it."""
    before = load()
    result = run(progress)
    return Measured(result, machine(peers=result.peers, load_before=before))


INSTRUCTION_SETS = {
    "SSE4_2": ("sse4_2",),
    "AVX": ("avx",),
    "AVX2": ("avx2",),
    "FMA": ("fma",),
    "AVX512": ("avx512f",),
    "AVX512_VNNI": ("avx512_vnni",),
    "AVX512_BF16": ("avx512_bf16",),
    "AVX512_FP16": ("avx512_fp16",),
    "AMX": ("amx_tile",),
    "AMX_BF16": ("amx_bf16",),
    "AMX_INT8": ("amx_int8",),
    "NEON": ("neon", "asimd"),
    "SVE": ("sve",),
    "SVE2": ("sve2",),
}
"""Names that Linux gives an instruction set in /proc/cpuinfo, on x86-64 and ARM."""

THREAD_VARIABLES = (
    "XLA_FLAGS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NPROC",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
)
"""Environment variables that change how many threads the libraries take, or what they compute with."""

LIBRARIES = ("jax", "jaxlib", "numpy")
"""Libraries whose versions every benchmark names, besides its peers'."""


class Processor(NamedTuple):
    """A processor.

    Attributes:
        model: its maker's name for it; the architecture's where the system gives none.
        instruction_sets: the vector and matrix instructions it has, of `INSTRUCTION_SETS`.
    """

    model: str
    instruction_sets: tuple[str, ...]


def processor(cpuinfo: str) -> Processor:
    """The processor that the text of /proc/cpuinfo describes; all cores are taken to be alike.

    Args:
        cpuinfo: the text; empty where the system has no such file.
    """
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip().lower(), value.strip())
    flags = set(f"{fields.get('flags', '')} {fields.get('features', '')}".split())
    sets = tuple(name for name, spellings in INSTRUCTION_SETS.items() if flags.intersection(spellings))
    return Processor(fields.get("model name") or platform.processor() or platform.machine(), sets)


def load() -> float | None:
    """Processes that ran or waited for a core, averaged over the last minute; None where the system cannot tell."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def usable_cores() -> int:
    """Number of cores that this process may run on, which a container or `taskset` may limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine(*, peers: Sequence[str] = (), load_before: float | None = None) -> dict[str, Any]:
    """Return a description of this machine, as JSON data.

    Args:
        peers: distributions that were measured beside headjax, whose versions count too.
        load_before: `load` before the measurement.
    """
    file = Path("/proc/cpuinfo")
    cpu = processor(file.read_text() if file.is_file() else "")
    device = jax.devices()[0]
    versions = {name: importlib.metadata.version(name) for name in (*LIBRARIES, *peers)}
    return {
        "device": device.device_kind,
        "platform": device.platform,
        "processor": platform.machine(),
        "processor_model": cpu.model,
        "instruction_sets": list(cpu.instruction_sets),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "load_before": load_before,
        "load_after": load(),
        "threads": threads(peers),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "headjax": __version__,
        "versions": versions,
    }


def threads(peers: Sequence[str]) -> dict[str, str | int]:
    """Return what sets the number of threads: environment variables, and PyTorch's own count where it is a peer.

    XLA takes one thread a usable core unless one of the variables says otherwise.
    """
    found: dict[str, str | int] = {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ}
    if "torch" in peers:
        import torch

        found["torch"] = torch.get_num_threads()
    return found


def machine_table(found: Mapping[str, Any]) -> Table:
    """`machine`'s result as a table."""
    cores = f"{found['usable_cores']} of {found['cores']}"
    loads = [found["load_before"], found["load_after"]]
    rows = [
        ("processor", f"{found['processor_model']} ({found['processor']})"),
        ("instruction sets", " ".join(found["instruction_sets"]) or "unknown"),
        ("cores used", cores),
        ("load before, after", ", ".join("unknown" if one is None else f"{one:.2f}" for one in loads)),
        ("threads", _pairs(found["threads"], "=") or "as the libraries choose"),
        ("device", f"{found['device']} ({found['platform']})"),
        ("versions", _pairs({"python": found["python"], "headjax": found["headjax"], **found["versions"]}, " ")),
    ]
    notes = ("Load: processes that ran or waited for a core, averaged over a minute; the benchmark's own count after.",)
    return Table((Column("Machine"), Column("")), rows, notes=notes)


def _pairs(values: Mapping[str, Any], between: str) -> str:
    return ", ".join(f"{name}{between}{value}" for name, value in values.items())


def peak_bytes() -> int:
    """Return the most memory that this process has held so far."""
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


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
