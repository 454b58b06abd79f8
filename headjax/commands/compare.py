"""`headjax compare`."""

from __future__ import annotations

import dataclasses
from itertools import islice
from typing import TYPE_CHECKING, Any

from headjax.commands.examples import BucketOptions, ReadingOptions, printed_metrics
from headjax.commands.options import Result, argument, option
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Listed
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.evaluation.task import Task
    from headjax.models.model import Model


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ReadingOptions, BucketOptions):
    """Options of `headjax compare`."""

    first: str = argument("A", "model directory", reads=True)
    second: str = argument("B", "another one", reads=True)
    repeats: Listed = option(7, "timed forward passes of each model, at least 2")


def run(options: Options, progress: Progress) -> Result:
    """Both models on the same examples: metrics, agreement, significance, parameters, heads, bytes, speed."""
    import jax

    from headjax.evaluation.paired import compare
    from headjax.heads.head_id import all_heads
    from headjax.models.model import load

    models = (load(options.first), load(options.second))
    tasks = (_task(options, options.first, models[0]), _task(options, options.second, models[1]))
    with progress("comparing", 2, "model"):
        found = compare(models, tasks, limit=options.limit, batch_size=options.batch_size, buckets=options.buckets)
    seconds = _seconds(models, tasks, options, progress)
    facts: dict[str, list[float]] = {
        "parameters": [model.num_parameters for model in models],
        "heads": [len(all_heads(model.config)) for model in models],
        "bytes": [sum(array.nbytes for array in jax.tree.leaves(model.params)) for model in models],
        "seconds_per_batch": seconds,
    }
    test = found.significance
    data: dict[str, Any] = {
        "metrics": [found.first.metrics, found.second.metrics],
        "examples": found.first.examples,
        "agreement": found.agreement,
        "agreement_measure": found.measure,
        "test": found.test,
        "significance": None if test is None else test._asdict(),
        "headline": tasks[0].headline,
        **facts,
        "speed_up": seconds[0] / seconds[1],
        "models": [options.first, options.second],
    }
    forms = {"bytes": numbers.size, "seconds_per_batch": numbers.duration}
    rows: list[tuple[str, Any, Any]] = [
        (name, numbers.significant(value), numbers.significant(found.second.metrics.get(name)))
        for name, value in printed_metrics(found.first.metrics, tasks[0]).items()
    ]
    for name, values in facts.items():
        form = forms.get(name, numbers.count)
        rows.append((name, form(values[0]), form(values[1])))
    agreement = "none" if found.agreement is None else f"{found.agreement:.4g}"
    notes = [f"{found.first.examples:,} examples of {tasks[0].name}. Agreement: {agreement} ({found.measure})."]
    if test is not None:
        interval = f"95 % interval {test.low:+.4g} to {test.high:+.4g}"
        difference = (
            f"{options.second} minus {options.first} {test.difference:+.4g}, {interval}, p = {test.p_value:.3g}"
        )
        notes.append(f"{found.test[0].upper()}{found.test[1:]}: {difference}.")
    columns = (Column(""), Column(options.first), Column(options.second))
    return Result(data, [Table(columns, rows, notes=notes)])


def _task(options: Options, path: str, model: Model) -> Task:
    """Return the task as a model reads it; the error of one that does not fit names the model."""
    from headjax.evaluation.specs import load_task

    try:
        return load_task(options.task, model, options.length or 0, split="all")
    except HeadjaxError as error:
        raise HeadjaxError(f"{path}: {error}") from None


def _seconds(
    models: tuple[Model, Model], tasks: tuple[Task, Task], options: Options, progress: Progress
) -> list[float]:
    """Return the median seconds of a forward pass over the first batch, the models in turns."""
    from headjax.core.timing import time_in_turns

    fitted = [task.fit(model) for model, task in zip(models, tasks, strict=True)]
    batches = [
        next(islice(task.batches(options.batch_size, limit=options.limit, buckets=options.buckets), 1))
        for task in tasks
    ]

    def call(number: int) -> Any:
        return lambda: fitted[number](batches[number]).hidden

    timed = time_in_turns({"A": call(0), "B": call(1)}, repeats=max(options.repeats, 2), progress=progress)
    return [timed["A"].median, timed["B"].median]
