"""`headjax grid`, also `headjax sweep --config`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headjax.commands.examples import TASK, BatchOptions, ConfigOptions
from headjax.commands.options import argument, option
from headjax.commands.results import Result, found, table_of
from headjax.core.errors import INTERRUPTED, HeadjaxError
from headjax.core.fields import Count, Size
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Column, Table
from headjax.storage.files import write_file
from headjax.storage.paths import path_of

if TYPE_CHECKING:
    from headjax.models.model import Model
    from headjax.training.grid import CellResult, Summary


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ConfigOptions, BatchOptions):
    """Options of `headjax grid`."""

    out: str = argument("OUT", "folder of the runs, one workdir each; those that have ended are kept", writes="folder")
    over: tuple[str, ...] = option(
        (),
        "values of a config argument or field, such as num_heads=1/2/4 or config.steps=100/200; together as "
        "num_heads,head_dim=1,64/2,32; given again: every combination",
        "SETTING=VALUES",
        words="repeated",
    )
    seeds: Size = option(1, "runs of every combination, with config.seed 0 to N - 1")
    cell: str | None = option(None, "run this one alone, counted from 1, such as 3/40", "K/N")
    collect: bool = option(False, "run nothing, collect the cells that have ended")
    metric: str = option("loss", "metric of the table and of the plot", "NAME")
    task: str = option("", f"also evaluate every trained model on it: {TASK}", "TASK", reads=True)
    limit: Count = option(0, "use the first N examples; 0 is all", requires="task")
    beams: Count = option(0, "BLEU of translations with N hypotheses; 0: no BLEU", requires="task")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found(Result):
    """Runs of a grid.

    Attributes:
        config: the config file.
        interrupted: the cell in which the grid was interrupted; None where it was not.
    """

    cells: int = found("number of runs in all")
    ended: int = found()
    missing: Sequence[str] = found("cells as K/N")
    metric: str = found()
    results: Sequence[CellResult] = found(
        "`settings`, `seed`, `parameters`, `steps`, `seconds`, `tokens_per_second`, `diverged` (its reason), `metrics`"
    )
    summaries: Sequence[Summary] = found(
        "`settings`, `parameters`, `runs`, `diverged`, `mean`, `low`, `high` (95 % interval), `values`, `seconds`"
    )
    plot: Path | None = found()
    config: str
    interrupted: str | None

    def tables(self) -> Sequence[Table]:
        if not self.results:
            return []
        settings = list(self.summaries[0].settings)
        columns = {name: Column(name) for name in settings} | {
            "parameters": Column("Parameters", numbers.count),
            "runs": Column("Runs", numbers.count),
            "diverged": Column("Diverged", numbers.count),
            "mean": Column(self.metric, numbers.significant),
            "low": Column("95 % from", numbers.significant),
            "high": Column("to", numbers.significant),
            "seconds": Column("Seconds", numbers.significant),
        }
        note = (
            f"{self.metric} at the end of training: mean over the runs that did not diverge, and its 95 % confidence "
            f"interval by Student's t. Seconds: a run's mean. {self.ended} runs of {self.config}."
        )
        rows = [{**summary._asdict(), **summary.settings} for summary in self.summaries]
        return [table_of(columns, rows, notes=[note])]

    def message(self) -> str:
        if self.interrupted is not None:
            return f"interrupted in cell {self.interrupted}; the same command continues from there"
        return f"{self.ended} of {self.cells} cells have ended"

    @property
    def exit_code(self) -> int:
        return 0 if self.interrupted is None else INTERRUPTED


def run(options: Options, progress: Progress) -> Found:
    """Trains a config over a grid of settings and seeds, continues after a stop, and collects the cells."""
    from headjax.training.grid import Axis, Grid, pick, summarize

    axes = [Axis.parse(text) for text in options.over]
    measured = f"{options.task}, limit {options.limit}, beams {options.beams}" if options.task else ""
    grid = Grid.of(options.config, options.overrides, axes, options.seeds, path_of(options.out), measured)
    total = len(grid.cells)
    if options.collect and options.cell is not None:
        raise HeadjaxError("--cell: --collect runs no cell")
    wanted: Sequence[int] = () if options.collect else range(total)
    if options.cell is not None:
        wanted = (pick(options.cell, total),)
    interrupted = None
    for number in wanted:
        if grid.result(number) is None and not grid.run(number, lambda model: _measured(model, options), progress):
            interrupted = f"{number + 1}/{total}"
            break
    results = [grid.result(number) for number in range(total)]
    ended = [result for result in results if result is not None]
    summaries = summarize(ended, options.metric)
    plot = _plot(summaries, options.metric)
    return Found(
        cells=total,
        ended=len(ended),
        missing=[f"{number + 1}/{total}" for number, result in enumerate(results) if result is None],
        metric=options.metric,
        results=ended,
        summaries=summaries,
        plot=None if plot is None else write_file(path_of(options.out) / "grid.png", plot),
        config=options.config,
        interrupted=interrupted,
    )


def _measured(model: Model, options: Options) -> Mapping[str, float]:
    """Return a trained model's metrics on the task that the options name; none without one."""
    if not options.task:
        return {}
    from headjax.data.forms.language import Translations
    from headjax.evaluation.specs import load_task
    from headjax.evaluation.task import measure_task
    from headjax.evaluation.translation import translate

    task = load_task(options.task, model, 0, split="all")
    metrics = dict(measure_task(model, task, limit=options.limit, batch_size=options.batch_size).metrics)
    pairs = task.data.validation
    if options.beams and isinstance(pairs, Translations):
        some = pairs.first(options.limit)
        metrics["bleu"] = translate(model, some, batch_size=options.batch_size, beams=options.beams).bleu.score
    return metrics


def _plot(summaries: Sequence[Summary], metric: str) -> bytes | None:
    """Draw the metric against the first setting of numbers, one curve for each of the others; None without one."""
    from headjax.report.curves import line_plot

    names = list(summaries[0].settings) if summaries else []
    across = next((name for name in names if all(_number(each.settings[name]) is not None for each in summaries)), None)
    if across is None or not any(summary.values for summary in summaries):
        return None
    curves: dict[str, list[tuple[float, float]]] = {}
    for summary in summaries:
        others = [f"{name} {value}" for name, value in summary.settings.items() if name != across]
        curve = curves.setdefault(", ".join(others) or metric, [])
        curve += [(float(summary.settings[across]), value) for value in summary.values]
    drawn = {name: points for name, points in curves.items() if points}
    title = f"{metric.capitalize()} by {across}: mean and range of the seeds"
    label = "loss (nats per target)" if metric == "loss" else metric
    return line_plot(drawn, title=title, x_label=across, y_label=label).png()


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
