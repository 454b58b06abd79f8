"""`headjax bench`."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from headjax.commands.options import CommandOptions, argument, option
from headjax.commands.results import Result, found
from headjax.core.errors import HeadjaxError
from headjax.core.progress import Progress
from headjax.core.serialize import unknown_name
from headjax.report import numbers
from headjax.report.tables import Table
from headjax.storage.files import write_file
from headjax.storage.paths import path_of

BENCHES = {
    "generate": "prefill and decode of a Llama shape, whole, pruned and converted, beside transformers",
    "heads": "scoring, ablating and removing heads of a BERT-base classifier beside PyTorch",
    "hub": "importing a BERT-base directory of 440 MB beside reading its file with safetensors; import, pruning and "
    "export of a model of 2.5 GB beside a copy of its files",
    "scaling": "time and memory of a train step, scoring, ablation, conversion and generation as length, depth, heads "
    "and batch grow, beside the growth of their FLOPs",
    "train_step": "a BERT-base train step beside Hugging Face's PyTorch BERT",
}
"""Benchmarks and what they compare; each is `run` in `benchmarks/NAME.py` of a checkout."""

CHECKOUT = Path(__file__).resolve().parents[2]
"""The folder that holds the package: of a checkout, it holds `benchmarks/` as well."""

STUDIES = ("scaling",)
"""Benchmarks that come in several sizes and draw a plot."""


def _known(name: str) -> str:
    if name not in BENCHES:
        raise ValueError(unknown_name("benchmark", name, BENCHES))
    return name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Options of `headjax bench`."""

    name: str = argument("NAME", "; ".join(f"{name}: {text}" for name, text in BENCHES.items()), read=_known)
    size: Literal["short", "full", "large"] | None = option(
        None, "amount of work of scaling: full, the default, takes ten minutes of processor time; large is for a GPU"
    )
    plot: str = option("", "write the curves of scaling", "FILE.png|FILE.svg", writes="plot")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found(Result):
    """Both sides of a benchmark.

    Attributes:
        shown: the tables.
        plotted: file of the plot.
    """

    ours: Any = found(
        "of `scaling`: `curves.OPERATION.FACTOR` with `values`, `seconds` (by value and turn), `flops`, `memory`, "
        "`slope` (`median`, `low`, `high`), `predicted_slope`, `memory_slope`, `departs`"
    )
    peer: Any = found()
    ratio: float = found("ours over the peer's")
    machine: Any = found()
    shown: Sequence[Table]
    plotted: str

    def tables(self) -> Sequence[Table]:
        return self.shown

    def message(self) -> str:
        plot = f"; plot: {self.plotted}" if self.plotted else ""
        return f"ratio: {numbers.significant(self.ratio)} (ours over the peer's){plot}"


def run(options: Options, progress: Progress) -> Found:
    """Measure both sides in one run, and name the machine."""
    _check(options)
    bench, result = _module(options.name).run, _module("result")
    before = result.load()
    measured = bench(progress, size=options.size) if options.size else bench(progress)
    machine = result.machine(measured.peers, before)
    plot = measured.plot if options.plot else None
    if plot is not None:
        place = path_of(options.plot)
        write_file(place, plot.png() if place.suffix == ".png" else plot.svg().encode())
    return Found(
        ours=measured.ours,
        peer=measured.peer,
        ratio=measured.ratio,
        machine=machine,
        shown=(*measured.tables, result.machine_table(machine)),
        plotted="" if plot is None else options.plot,
    )


def _module(name: str) -> Any:
    """Import a file of `benchmarks/`, which no wheel holds.

    Raises:
        HeadjaxError: the package was not installed from a checkout.
    """
    if not (CHECKOUT / "benchmarks" / f"{name}.py").is_file():
        raise HeadjaxError(f"bench: {CHECKOUT / 'benchmarks'}: no such folder; run headjax bench from a git checkout")
    if str(CHECKOUT) not in sys.path:
        sys.path.insert(0, str(CHECKOUT))
    return importlib.import_module(f"benchmarks.{name}")


def _check(options: Options) -> None:
    """Refuse options that the benchmark does not take, before anything is measured."""
    for name, typed in (("--size", options.size), ("--plot", options.plot)):
        if typed and options.name not in STUDIES:
            raise HeadjaxError(f"{name}: is for {', '.join(STUDIES)}, not for {options.name}")
    if options.plot and path_of(options.plot).suffix not in (".png", ".svg"):
        raise HeadjaxError(f"--plot: expected a name that ends in .png or .svg, got {options.plot!r}")
