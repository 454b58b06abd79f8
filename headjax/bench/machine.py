"""The machine a benchmark ran on: processor, instruction sets, cores, load, threads, and versions of the libraries."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from headjax.report.tables import Column, Table
from headjax.version import __version__

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
    """Where a measurement was taken, as JSON data.

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
    """What sets the number of threads: environment variables that are set, and PyTorch's own count where it is a peer.

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
