"""`headjax bench hub`: importing a BERT-base directory of 440 MB, beside reading its file with safetensors alone.

Behind it come import, pruning and export of a model of 2.5 GB, see `benchmarks.streaming`.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from benchmarks import streaming
from benchmarks.result import BenchResult, in_new_process, peak_bytes
from benchmarks.train_step import bert
from headjax.core.progress import Progress, silent
from headjax.core.timing import Timing
from headjax.report import numbers
from headjax.report.tables import Column, Table

REPEATS = 5


def run(progress: Progress = silent) -> BenchResult:
    """Read the same file both ways, each time in a new process, in turns; memory is the process's peak.

    Raises:
        HeadjaxError: a process failed.
    """
    from headjax.hub import to_huggingface
    from headjax.models.model import Model

    measured: dict[str, list[dict[str, float]]] = {name: [] for name in READERS}
    with tempfile.TemporaryDirectory() as folder, progress("reading", REPEATS * len(READERS), "runs") as bar:
        config = bert(12, 12)
        size = to_huggingface(Model(config, config.initialize(jax.random.key(0))), Path(folder) / "model").bytes
        for repeat in range(REPEATS):
            for place, name in enumerate(READERS):
                measured[name].append(in_new_process(read_and_report, name, str(Path(folder) / "model")))
                bar(repeat * len(READERS) + place + 1, {})
    summaries = {name: _summary(runs, size) for name, runs in measured.items()}
    ours, peer = summaries.values()
    ratio = ours["seconds"] / peer["seconds"]
    large = streaming.run(progress)
    tables = (_table(summaries, size), streaming.table(large))
    return BenchResult({**ours, "large": large}, peer, ratio, tables, ("safetensors",))


def read_and_report(name: str, directory: str) -> None:
    """Read a directory in one of the ways and print its time and memory as JSON."""
    read = READERS[name]()
    before = peak_bytes()
    start = time.perf_counter()
    held = read(Path(directory))
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "peak_bytes": peak_bytes(), "before_bytes": before, "arrays": len(held)}))


def _headjax() -> Callable[[Path], Mapping[str, Any]]:
    from headjax.hub import from_huggingface

    jax.devices()

    def read(directory: Path) -> Mapping[str, Any]:
        return jax.block_until_ready(from_huggingface(directory).params)

    return read


def _safetensors() -> Callable[[Path], Mapping[str, Any]]:
    from safetensors.numpy import load_file

    jax.devices()  # so that both processes hold the same besides
    return lambda directory: load_file(directory / "model.safetensors")


READERS = {"headjax": _headjax, "safetensors.numpy.load_file": _safetensors}
"""Ways to read a directory, by name; each imports what it needs before anything is timed."""


def _summary(runs: list[dict[str, float]], size: int) -> dict[str, Any]:
    timing = Timing.of([run["seconds"] for run in runs])
    peak = max(run["peak_bytes"] for run in runs)
    before = max(run["before_bytes"] for run in runs)
    return {
        "seconds": timing.median,
        "seconds_low": timing.low,
        "seconds_high": timing.high,
        "peak_bytes": peak,
        "before_bytes": before,
        "file_bytes": size,
        "peak_over_file": peak / size,
    }


def _table(summaries: Mapping[str, Mapping[str, Any]], size: int) -> Table:
    columns = (
        Column("Reading"),
        Column("Median", numbers.duration, "lower"),
        Column("First quartile", numbers.duration),
        Column("Third quartile", numbers.duration),
        Column("Peak memory", numbers.size, "lower"),
        Column("of it before", numbers.size),
    )
    keys = ("seconds", "seconds_low", "seconds_high", "peak_bytes", "before_bytes")
    rows = [(name, *(summary[key] for key in keys)) for name, summary in summaries.items()]
    note = f"A BERT-base file of {numbers.size(size)}, in the page cache; {REPEATS} new processes each, in turns."
    return Table(columns, rows, notes=(note,))
