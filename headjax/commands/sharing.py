"""`headjax sharing`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headjax.commands.examples import TASK, ExamplesOptions, open_model_and_examples_if_any
from headjax.commands.options import option
from headjax.commands.results import ABSENT, OnExamples, found
from headjax.core.errors import ConfigError
from headjax.core.fields import Count
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Column, Table
from headjax.storage.files import write_file
from headjax.storage.paths import path_of

if TYPE_CHECKING:
    from headjax.conversion.analysis import Captured
    from headjax.conversion.target import HeadLayer
    from headjax.evaluation.task import Task
    from headjax.models.model import Model

SHARES = (0.9, 0.95, 0.99)
"""Shares of the variance that ranks are given for."""

PARTS = {"query": "W_Q", "key": "W_K", "product": "W_Q W_K^T"}
"""Decomposed matrices, and their names in plots."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ExamplesOptions):
    """Options of `headjax sharing`."""

    task: str = option("", TASK, "TASK", reads=True)
    plots: str | None = option(None, "folder for the curves of captured variance", "FOLDER", writes="folder")
    budget: Count = option(0, "share N dimensions out among the layers; 0: none")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found(OnExamples):
    """Dimensions that heads could share.

    Attributes:
        headline: the task's main metric.
    """

    selection: Any = found("null", default=ABSENT)
    evaluation: Any = found("examples of `metrics`", default=ABSENT)
    ranks: Mapping[str, Any] = found("by layer, part and share of the squared norm")
    budget: Mapping[str, int] = found("dimensions by layer, with `--budget`", default=ABSENT)
    plots: Sequence[Path] = found("with `--plots`", default=ABSENT)
    metrics: Mapping[str, Any] = found("with a task: `all`, `context_only`, `content_only`", default=ABSENT)
    left_out: Mapping[str, str] = found("reasons, by name, of metrics that are missing", default=ABSENT)
    headline: str = ""

    def tables(self) -> Sequence[Table]:
        tables = [_rank_table(self.ranks)]
        if self.budget:
            rows = list(self.budget.items())
            tables.append(Table((Column("Layer"), Column("Dimensions", numbers.fixed(0))), rows))
        if self.metrics:
            tables.append(_split_table(self.metrics, self.left_out, self.headline, self.about))
        return tables

    def message(self) -> str:
        return f"plots: {', '.join(map(str, self.plots))}" if self.plots else ""


def run(options: Options, progress: Progress) -> Found:
    """Return ranks of queries and keys, alone and together; with a task, its metrics with context or content alone."""
    from headjax.conversion.analysis import captured_variance, rank_budget

    model, examples = open_model_and_examples_if_any(options)
    captured = captured_variance(model)
    more: dict[str, Any] = {}
    if options.budget:
        more["budget"] = {f"{stack}/{layer}": n for (stack, layer), n in rank_budget(model, options.budget).items()}
    if examples is not None:
        more |= examples.described(selection=False) | {"headline": examples.evaluation.headline}
        more["metrics"], more["left_out"] = _split(model, examples.evaluation, options, progress)
    if options.plots:
        more["plots"] = _write_plots(captured, path_of(options.plots))
    ranks = {f"{stack}/{layer}": _ranks(variance) for (stack, layer), variance in captured.items()}
    return Found(ranks=ranks, **more)


def _ranks(found: Captured) -> dict[str, dict[str, float]]:
    """By part and share: of all heads together, and the mean over heads alone."""
    from headjax.conversion.analysis import rank_for

    curves = {name: getattr(found, name) for part in PARTS for name in (part, f"{part}_by_head")}
    return {
        name: {f"{share:.0%}": float(rank_for(curve, share).mean()) for share in SHARES}
        for name, curve in curves.items()
    }


def _rank_table(ranks: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Table:
    shares = [f"{share:.0%}" for share in SHARES]
    columns = [Column("Layer")]
    columns += [Column(f"{part} {share}", numbers.fixed(0)) for part in PARTS for share in shares]
    columns += [Column(f"per head {share}", numbers.fixed(1)) for share in shares]
    names = (*PARTS, "product_by_head")
    rows = [(layer, *(found[name][share] for name in names for share in shares)) for layer, found in ranks.items()]
    note = "The rank that captures so much of the squared norm, of all heads together and of one head's product (mean)."
    return Table(columns, rows, notes=(note,))


def _split(model: Model, task: Task, options: Options, progress: Progress) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the task's metrics with all of the logits, and with context or content alone.

    A model whose logits cannot be split has the first only; the second dict then says why, by the name of the others.
    """
    from headjax.conversion.analysis import content_only, context_only
    from headjax.evaluation.task import evaluate_task

    metrics: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    changes = {"all": lambda model: model, "context_only": context_only, "content_only": content_only}
    with progress("evaluating", len(changes), "models") as bar:
        for name, change in changes.items():
            try:
                changed = change(model)
            except ConfigError as error:
                left_out[name] = str(error)
                continue
            metrics[name] = evaluate_task(
                changed, task, limit=options.limit, batch_size=options.batch_size, buckets=options.buckets
            )
            bar(len(metrics), {})
    return metrics, left_out


def _split_table(
    metrics: Mapping[str, Mapping[str, float]], left_out: Mapping[str, str], headline: str, about: Sequence[str]
) -> Table:
    rows = [(name.replace("_", " "), found[headline]) for name, found in metrics.items()]
    notes = ["Context: what query and key say together. Content: what the key says to every query, by b_Q."]
    if left_out:
        names = " and ".join(name.replace("_", " ") for name in left_out)
        notes.append(f"Not measured: {names} ({next(iter(left_out.values()))}).")
    return Table((Column("Logits"), Column(headline, numbers.significant)), rows, notes=(*notes, *about))


def _write_plots(captured: Mapping[HeadLayer, Captured], folder: Path) -> list[Path]:
    """Figure 1 of Cordonnier et al. (2020): per head, and with the heads side by side."""
    from headjax.report.curves import line_plot

    def drawn(curves: Mapping[str, Sequence[Any]], title: str) -> bytes:
        points = {
            name: [(float(kept), float(share)) for layer in layers for kept, share in enumerate(layer, start=1)]
            for name, layers in curves.items()
        }
        return line_plot(points, title=title, x_label="Dimensions kept", y_label="Variance captured").png()

    found = list(captured.values())
    size = min(len(one.product) for one in found)
    dim = min(one.product_by_head.shape[1] for one in found)
    together = {name: [getattr(one, part)[:size] for one in found] for part, name in PARTS.items()}
    alone = {
        name: [getattr(one, f"{part}_by_head").mean(axis=0)[:dim] for one in found] for part, name in PARTS.items()
    }
    plots = {
        "captured.png": drawn(together, "Captured variance, heads side by side"),
        "captured_by_head.png": drawn(alone, "Captured variance, mean of single heads"),
    }
    return [write_file(folder / name, plot) for name, plot in plots.items()]
