"""A model before and after surgery, for the commands that change models."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.evaluation.task import Task
    from headjax.models.model import Model


class Metrics(NamedTuple):
    """A task's metrics before and after; both empty without a task."""

    before: Mapping[str, float]
    after: Mapping[str, float]


def evaluate_pair(
    before: Model, after: Model, task: Task | None, options: argparse.Namespace, progress: Progress
) -> Metrics:
    """The task's metrics of both models, on as much of it as the options say."""
    from headjax.evaluation.task import evaluate_task

    if task is None:
        return Metrics({}, {})
    found = []
    with progress("evaluating", 2, "model") as bar:
        for model in (before, after):
            found.append(
                evaluate_task(model, task, limit=options.limit, batch_size=options.batch_size, buckets=options.buckets)
            )
            bar(len(found), {})
    return Metrics(*found)


def comparison_table(before: Model, after: Model, metrics: Metrics, notes: tuple[str, ...] = ()) -> Table:
    """Return heads, parameters and metrics of both models, with notes on the examples that were read."""
    from headjax.heads.head_id import all_heads

    rows: list[tuple[str, float, float]] = [
        ("heads", len(all_heads(before.config)), len(all_heads(after.config))),
        ("parameters", before.num_parameters, after.num_parameters),
    ]
    rows += [(name, value, metrics.after[name]) for name, value in metrics.before.items()]
    return Table((Column(""), Column("Before", _number), Column("After", _number)), rows, notes=notes)


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else numbers.significant(value)
