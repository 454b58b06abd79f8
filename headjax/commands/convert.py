"""`headjax convert`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from headjax.commands.command import Command, Result, add_task_arguments, open_model_and_task
from headjax.commands.comparison import comparison_table, evaluate_pair
from headjax.errors import HeadjaxError
from headjax.report import numbers
from headjax.report.progress import Progress
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.evaluation.task import Task
    from headjax.models.base import Model

COMPARED_BATCHES = 4
"""Batches of the task that outputs before and after are compared on."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="model directory")
    parser.add_argument("out", metavar="OUT", help="where the converted model goes")
    parser.add_argument(
        "--to", required=True, metavar="TARGET", help="such as collaborative:shared_dim=384, grouped:kv_heads=4 or deep"
    )
    add_task_arguments(parser, required=False)
    parser.add_argument(
        "--calibrate", type=int, default=0, metavar="N", help="weigh errors by the inputs of N batches of the task"
    )
    parser.add_argument("--stacks", default="", metavar="STACKS", help="only these: encoder,decoder,cross")
    parser.add_argument("--layers", default="", metavar="LAYERS", help="only these, such as 0,3,4")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of random starts (%(default)s)")


def run(options: argparse.Namespace, progress: Progress) -> Result:
    """Writes the model in another formulation; with a task, also its metrics before and after."""
    from headjax.conversion import convert
    from headjax.models.directory import load

    if options.calibrate and not options.task:
        raise HeadjaxError("--task: needed to calibrate on")
    model, task = open_model_and_task(options) if options.task else (load(options.model), None)
    batches = None
    if task is not None and options.calibrate:
        batches = list(islice(task.train_batches(options.batch_size), options.calibrate))
    with progress(f"converting to {options.to}", 1, "model") as bar:
        conversion = convert(
            model,
            options.to,
            batches=batches,
            stacks=options.stacks.split(",") if options.stacks else None,
            layers=_layers(options.layers),
            seed=options.seed,
        )
        bar(1, {})
    metrics = evaluate_pair(model, conversion.model, task, options, progress)
    difference = None if task is None else _difference(model, conversion.model, task, options)
    conversion.model.save(options.out)
    errors = [error._asdict() for error in conversion.errors]
    data = {
        "error_per_layer": errors,
        "parameters": conversion.model.num_parameters,
        "parameters_before": model.num_parameters,
        "metrics": metrics.after,
        "metrics_before": metrics.before,
        "output_difference": difference,
        "to": options.to,
        "model": str(options.out),
    }
    tables = [_error_table(errors, difference), comparison_table(model, conversion.model, metrics)]
    return Result(data, tables, f"model: {options.out}")


def _layers(text: str) -> list[int] | None:
    if not text:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise HeadjaxError(f"--layers: expected numbers such as 0,3,4, got {text!r}") from None


def _difference(before: Model, after: Model, task: Task, options: argparse.Namespace) -> float:
    """The relative difference of the models' outputs on some batches of the task."""
    from headjax.conversion.difference import output_difference

    batches = islice(task.batches(options.batch_size, limit=options.limit), COMPARED_BATCHES)
    return output_difference(before, after, batches)


def _error_table(errors: Sequence[dict[str, Any]], difference: float | None) -> Table:
    names = [name for name in ("relative_error", "logit_error") if any(error.get(name) is not None for error in errors)]
    columns = (Column("Layer"), *(Column(name.replace("_", " "), numbers.significant) for name in names))
    rows = [(f"{error['stack']}/{error['layer']}", *(error.get(name) for name in names)) for error in errors]
    notes = () if difference is None else (f"Outputs on the task differ by {difference:.2g} of their size.",)
    return Table(columns, rows, notes=notes)


COMMAND = Command("convert", "another formulation from the same weights", arguments, run)
