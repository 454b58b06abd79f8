"""`headjax evaluate`."""

from __future__ import annotations

import argparse

from headjax.commands.command import Command, Result, add_task_arguments, open_model_and_task
from headjax.report import numbers
from headjax.report.progress import Progress
from headjax.report.tables import Column, Table


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="model directory")
    add_task_arguments(parser)


def run(options: argparse.Namespace, progress: Progress) -> Result:
    """The model's loss and the task's metrics."""
    from headjax.evaluation.task import measure_task

    model, task = open_model_and_task(options)
    batches = task.count_batches(options.batch_size, limit=options.limit)
    with progress("evaluating", batches, "batch") as bar:
        found = measure_task(model, task, limit=options.limit, batch_size=options.batch_size, progress=bar)
    data = {
        "metrics": found.metrics,
        "examples": found.examples,
        "task": task.name,
        "headline": task.headline,
        "higher_is_better": task.higher_is_better,
    }
    rows = [(name, value) for name, value in found.metrics.items()]
    columns = (Column(task.name), Column(f"{found.examples:,} examples", numbers.significant))
    return Result(data, [Table(columns, rows)])


COMMAND = Command("evaluate", "a model's metrics on a task", arguments, run)
