"""Runs the tests as other processors would: with other instruction sets, vector widths and numbers of cores.

    python tests/slow/portable.py
    python tests/slow/portable.py --isas "SSE4_2 AVX2" --cores "1 2" --workers 4 tests/models

Each configuration is one run of the tests and one line: what pytest says at its end. What the processor cannot do, or
what there are too few cores for, is left out and said so. Logs of all runs stay in a directory that the end names.
"""

from __future__ import annotations

import argparse
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
    parser.add_argument("--isas", default=" ".join(ISAS), help="instruction sets, separated by spaces")
    parser.add_argument("--cores", default=" ".join(map(str, CORES)), help="cores of each worker")
    parser.add_argument("--workers", type=int, default=None, help="processes; by default as many as the cores allow")
    parser.add_argument("tests", nargs="*", default=["tests"])
    given = parser.parse_args()
    unknown = set(given.isas.split()) - set(ISAS)
    if unknown:
        parser.error(f"--isas: unknown {', '.join(sorted(unknown))}; there are {', '.join(ISAS)}")
    missing = [name for name in given.tests if not Path(name.split("::")[0]).exists()]
    if missing:
        parser.error(f"tests: no file or directory {', '.join(missing)}")
    logs = Path(tempfile.mkdtemp(prefix="headjax-portable-"))
    results = []
    for name in given.isas.split():
        for cores in map(int, given.cores.split()):
            title = f"{name} on {cores} core{'s' if cores > 1 else ''}"
            reason = left_out(name, cores)
            if reason:
                print(f"{title}: left out: {reason}", flush=True)
                continue
            log = logs / f"{name}-{cores}.log"
            passed = run(ISAS[name], cores, given.workers, given.tests, log)
            results.append(passed)
            print(f"{title}: {'passed' if passed else 'FAILED'}: {closing_line(log)}", flush=True)
            for line in [] if passed else failures(log):
                print(f"    {line}", flush=True)
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


def run(isa: InstructionSet, cores: int, workers: int | None, tests: list[str], log: Path) -> bool:
    """Run the tests with so many cores for each worker; return whether they passed."""
    workers = workers or max(1, len(os.sched_getaffinity(0)) // cores)
    pytest = [sys.executable, "-m", "pytest", "-m", "not parity and not attack", "-rf"]
    spread = ["--numprocesses", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]
    with log.open("w") as output:
        done = subprocess.run(
            [*pytest, *spread, *tests],
            env=environment(isa, cores),
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return done.returncode == 0


def closing_line(log: Path) -> str:
    """Return the last line of a log that says something."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip("= ") if lines else "no output"


def failures(log: Path) -> list[str]:
    """Return the lines that name failed tests."""
    lines = log.read_text(errors="replace").splitlines()
    return [line[:200] for line in lines if line.startswith(("FAILED", "ERROR"))]


if __name__ == "__main__":
    sys.exit(main())
