"""Runs the tests as other processors would: with other instruction sets, and numbers of cores for each worker.

    python tests/slow/portable.py tests/models --isas SSE4_2 AVX2 --cores 1 2

A line for each says what pytest says at its end. What the processor cannot do, or has too few cores for, is left out.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
from pathlib import Path

ISAS = {
    "SSE4_2": ("sse4_2", "--xla_cpu_max_isa=SSE4_2"),
    "AVX2": ("avx2", "--xla_cpu_max_isa=AVX2"),
    "AVX512": ("avx512f", "--xla_cpu_max_isa=AVX512"),
    "AVX512-512": ("avx512f", "--xla_cpu_max_isa=AVX512", "--xla_cpu_prefer_vector_width=512"),
}
"""The flag of the processor without which a set makes no difference, and XLA's flags."""


def main() -> int:
    """Run every configuration; return 1 if one failed or none ran."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--isas", nargs="+", default=list(ISAS), choices=list(ISAS), help="instruction sets")
    parser.add_argument("--cores", nargs="+", type=int, default=(1, 2, 4), help="cores of each worker")
    parser.add_argument("tests", nargs="*", default=["tests"])
    given = parser.parse_args()
    available, able, passed = len(os.sched_getaffinity(0)), Path("/proc/cpuinfo").read_text().split(), []
    for name, cores in itertools.product(given.isas, given.cores):
        needs, *flags = ISAS[name]
        if cores > available or needs not in able:
            print(f"{name} on {cores} cores: left out", flush=True)
            continue
        # tests/conftest.py reads the cores and adds the flags of all tests.
        flags = " ".join([*os.environ.get("XLA_FLAGS", "").split(), *flags])
        environment = os.environ | {"XLA_FLAGS": flags, "HEADJAX_TEST_CORES": str(cores), "JAX_PLATFORMS": "cpu"}
        words = [sys.executable, "-m", "pytest", "-m", "not parity and not attack", "-q", "-rf", *given.tests]
        words += ["--numprocesses", str(available // cores), "--dist", "loadfile", "--no-loadscope-reorder"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        passed.append(done.returncode == 0)
        said = [line[:200] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        print(f"{name} on {cores} cores:", *said, done.stdout.splitlines()[-1], sep="\n    ", flush=True)
    return 0 if passed and all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
