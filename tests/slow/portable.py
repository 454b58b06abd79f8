"""Runs the tests as other processors would: with other instruction sets, vector widths and numbers of cores.

    python tests/slow/portable.py
    python tests/slow/portable.py --isas SSE4_2 AVX2 --cores 1 2 --tests tests/models

Each configuration is one run of the tests and one line: what pytest says at its end. What the processor cannot do, or
what there are too few cores for, is left out and said so. Logs of all runs stay in a directory that the end names.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple


class InstructionSet(NamedTuple):
    """What XLA may generate.

    Attributes:
        xla: Flags of XLA.
        needs: The processor's flag without which it makes no difference.
    """

    xla: tuple[str, ...]
    needs: str


ISAS = {
    "SSE4_2": InstructionSet(("--xla_cpu_max_isa=SSE4_2",), "sse4_2"),
    "AVX2": InstructionSet(("--xla_cpu_max_isa=AVX2",), "avx2"),
    "AVX512": InstructionSet(("--xla_cpu_max_isa=AVX512",), "avx512f"),
    "AVX512-512": InstructionSet(("--xla_cpu_max_isa=AVX512", "--xla_cpu_prefer_vector_width=512"), "avx512f"),
}
CORES = (1, 2, 4)


def main() -> int:
    """Run every configuration; return 1 if one failed or none ran."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--isas", nargs="+", default=list(ISAS), choices=list(ISAS), help="instruction sets")
    parser.add_argument("--cores", nargs="+", type=int, default=CORES, help="cores of each worker")
    parser.add_argument("--tests", nargs="+", default=["tests"])
    given = parser.parse_args()
    logs = Path(tempfile.mkdtemp(prefix="headjax-portable-"))
    results = []
    for name, cores in itertools.product(given.isas, given.cores):
        title, log = f"{name} on {cores} core{'s' if cores > 1 else ''}", logs / f"{name}-{cores}.log"
        reason = left_out(name, cores)
        if reason:
            print(f"{title}: left out: {reason}", flush=True)
            continue
        results.append(run(ISAS[name], cores, given.tests, log))
        lines = log.read_text(errors="replace").split("\n")
        failed = [f"\n    {line[:200]}" for line in lines if line.startswith(("FAILED", "ERROR"))]
        print(f"{title}: {'passed' if results[-1] else 'FAILED'}: {lines[-2].strip('= ')}{''.join(failed)}", flush=True)
    print(f"{sum(results)} of {len(results)} configurations passed; logs in {logs}")
    return 0 if results and all(results) else 1


def left_out(name: str, cores: int) -> str | None:
    """Return why a configuration cannot run here, None where it can."""
    available = len(os.sched_getaffinity(0))
    if cores > available:
        return f"this machine has {available} core{'s' if available > 1 else ''}"
    if ISAS[name].needs not in processor_flags():
        return f"the processor has no {ISAS[name].needs}"
    probe = subprocess.run(
        [sys.executable, "-c", "import jax; jax.numpy.ones(1).block_until_ready()"],
        env=environment(ISAS[name], cores),
        capture_output=True,
        text=True,
        check=False,
    )
    return f"XLA refuses {' '.join(ISAS[name].xla)}" if probe.returncode else None


def processor_flags() -> set[str]:
    """Return the processor's flags; none where Linux does not list them."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    return {flag for line in lines if line.startswith("flags") for flag in line.split(":")[1].split()}


def environment(isa: InstructionSet, cores: int) -> dict[str, str]:
    """Return the environment of a run; tests/conftest.py reads the cores and adds the flags of all tests."""
    flags = " ".join([*os.environ.get("XLA_FLAGS", "").split(), *isa.xla])
    return os.environ | {"XLA_FLAGS": flags, "HEADJAX_TEST_CORES": str(cores), "JAX_PLATFORMS": "cpu"}


def run(isa: InstructionSet, cores: int, tests: list[str], log: Path) -> bool:
    """Run the tests with so many cores for each of as many workers as the machine has room for; whether they passed."""
    workers = max(1, len(os.sched_getaffinity(0)) // cores)
    pytest = [sys.executable, "-m", "pytest", "-m", "not parity and not attack", "-rf"]
    spread = ["--numprocesses", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]
    with log.open("w") as output:
        done = subprocess.run(
            [*pytest, *spread, *tests], env=environment(isa, cores), stdout=output, stderr=output, check=False
        )
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
