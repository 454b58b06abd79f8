"""`python -m benchmarks commands --models DIRECTORY --task TASK --calibration TASK --calibrate N`: what commands cost.

Each runs in a process of its own, once with no compiled program and once with those of the first run. Times are beside
a pass: one forward of the original over the same calibration examples, its program compiled.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax

import headjax
from benchmarks.result import RESIDENT, BenchResult
from headjax.commands.inputs import Examples, start
from headjax.commands.prune import Options
from headjax.core import numbers
from headjax.core.errors import HeadjaxError
from headjax.core.programs import PLACE
from headjax.core.progress import Progress, silent
from headjax.models.model import Model
from headjax.report.tables import Column, Table

LIMIT = 32
"""Examples that the results are evaluated on."""

HALF = ("--remove", "50%", "--by")
COMMANDS: dict[str, tuple[str, ...]] = {
    "score": ("score", "MODEL"),
    "prune": ("prune", "MODEL", "OUT", *HALF, "importance"),
    "prune --reconstruct": ("prune", "MODEL", "OUT", *HALF, "importance", "--reconstruct"),
    "prune --by reconstruction": ("prune", "MODEL", "OUT", *HALF, "reconstruction", "--reconstruct"),
    "shrink": ("shrink", "MODEL", "OUT", "--budget", "parameters=60%"),
    "another budget": ("shrink", "MODEL", "OUT", "--budget", "parameters=80%"),
}
"""Words of the commands; the last finds the measurements of the one before."""

COMPILED = re.compile(r"Finished (jaxpr to MLIR|XLA compilation).* in ([\d.e-]+)")
"""What JAX says of the time that a program takes before it runs; tracing, which is nested, does not count."""

PLAN = re.compile(r"plan: (about .*), by a timed pass")
"""What a command says before work of more than a minute."""


class Cost(NamedTuple):
    """What a process took, and what it said before that it would."""

    seconds: float
    cpu: float
    compiling: float
    programs: int
    peak_bytes: int
    planned: str


def run(
    progress: Progress = silent,
    models: Sequence[Path] = (),
    task: str = "",
    calibration: str = "",
    calibrate: int = 128,
) -> BenchResult:
    """Run every command of `COMMANDS` twice on a directory.

    Raises:
        HeadjaxError: there is not one directory, or a command fails.
    """
    if len(models) != 1:
        raise HeadjaxError("--models: names one directory")
    words = ["--task", task, "--calibration", calibration, "--calibrate", str(calibrate), "--limit", str(LIMIT)]
    options = Options(
        model=str(models[0]), out="", remove="50%", task=task, calibration=(calibration,), calibrate=calibrate
    )
    tokens, wall, cpu = one_pass(*start(options))
    costs: dict[str, list[Cost]] = {}
    with tempfile.TemporaryDirectory() as folder, progress("commands", 2 * len(COMMANDS), "command") as bar:
        for number in range(2):
            for name, parts in COMMANDS.items():
                out = Path(folder) / f"{number} {name}"
                places = {"MODEL": str(models[0]), "OUT": str(out)}
                more = ["--work", f"{folder}/work {number}"] if parts[0] == "shrink" else []
                found = _timed([*(places.get(part, part) for part in parts), *words, *more], Path(folder) / "programs")
                costs.setdefault(name, []).append(found)
                bar(sum(map(len, costs.values())), {})
    rows = []
    for name, (first, again) in costs.items():
        planned = first.planned or None, again.planned or None
        rows.append((name, *first[:4], *planned, again.seconds, again.cpu, again.cpu / cpu, again.peak_bytes))
    columns = (
        Column("Command"),
        Column("First time", numbers.duration),
        Column("CPU time", numbers.duration),
        Column("Compiling", numbers.duration),
        Column("Programs", numbers.number),
        Column("Planned", numbers.text),
        Column("again", numbers.text),
        Column("Again", numbers.duration),
        Column("CPU time", numbers.duration),
        Column("in passes", numbers.significant),
        Column("Peak", numbers.size),
    )
    note = f"{calibrate} examples choose ({tokens:,} tokens with padding); a pass: {wall:.2f} s, CPU time {cpu:.2f} s."
    ours = {name: [cost._asdict() for cost in each] for name, each in costs.items()}
    peer = {"pass_seconds": wall, "pass_cpu": cpu, "tokens": tokens}
    return BenchResult(ours, peer, None, (Table(columns, rows, notes=(note,)),))


def one_pass(model: Model, examples: Examples) -> tuple[int, float, float]:
    """Return the tokens that choose, and the seconds and CPU seconds of a forward pass over them."""
    batches = list(examples.calibrating())
    forward = headjax.gated(examples.selection.fit(model), {})
    for batch in batches:
        jax.block_until_ready(forward(batch))
    wall, cpu = time.perf_counter(), time.process_time()
    for batch in batches:
        jax.block_until_ready(forward(batch))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return sum(int(next(iter(batch.values())).size) for batch in batches), wall, cpu


def _timed(words: Sequence[str], programs: Path) -> Cost:
    """Run a command that keeps its compiled programs in a folder as a user's are kept."""
    own = {name: value for name, value in os.environ.items() if name != PLACE}
    own |= {"XDG_CACHE_HOME": str(programs), "JAX_LOG_COMPILES": "1"}
    with tempfile.TemporaryFile("w+") as said:
        start = time.perf_counter()
        command = [sys.executable, "-m", "headjax", *words]
        process = subprocess.Popen(command, env=own, stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        seconds, process.returncode = time.perf_counter() - start, os.waitstatus_to_exitcode(status)
        said.seek(0)
        lines = said.read().splitlines()
    if process.returncode:
        raise HeadjaxError(f"commands: {' '.join(words)}: {lines[-1] if lines else 'failed'}")
    compiled = [each.groups() for line in lines if (each := COMPILED.search(line))]
    compiling, count = sum(float(seconds) for _, seconds in compiled), len(compiled) // 2
    planned = next((each[1] for line in lines if (each := PLAN.search(line))), "")
    cpu, peak = usage.ru_utime + usage.ru_stime, RESIDENT * usage.ru_maxrss
    return Cost(seconds, cpu, compiling, count, peak, planned)
