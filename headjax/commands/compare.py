"""`headjax compare`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from headjax.commands.examples import BucketOptions, ReadingOptions, printed_metrics
from headjax.commands.options import argument, option
from headjax.commands.results import Result, found
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Listed
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.evaluation.task import Task
    from headjax.heads.significance import Comparison
    from headjax.models.model import Model


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ReadingOptions, BucketOptions):
    """Options of `headjax compare`."""

    first: str = argument("A", "model directory", reads=True)
    second: str = argument("B", "another one", reads=True)
    repeats: Listed = option(7, "timed forward passes of each model, at least 2")


FACTS: Mapping[str, tuple[str, numbers.Format]] = {
    "parameters": ("parameters", numbers.count),
    "heads": ("heads", numbers.count),
    "bytes": ("weights", numbers.size),
    "seconds_per_batch": ("forward pass", numbers.duration),
}
"""Facts of a model that are compared: names and formats in the table."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found(Result):
    """Two models side by side, in the order typed.

    Attributes:
        task: name of the task.
        printed: the metrics that the table shows.
    """

    models: Sequence[str] = found("their folders; this and the lists that follow have a value for each model")
    metrics: Sequence[Mapping[str, float]] = found()
    parameters: Sequence[int] = found()
    heads: Sequence[int] = found()
    bytes: Sequence[int] = found("of the weights")
    seconds_per_batch: Sequence[float] = found("of a forward pass")
    speed_up: float = found("the first model's seconds over the second's")
    examples: int = found()
    headline: str = found("the main metric")
    agreement: float | None = found("of the predictions")
    agreement_measure: str = found()
    test: str = found("the paired test")
    significance: Comparison | None = found("`difference`, `p_value`, `low`, `high` (95 % interval)")
    task: str
    printed: Sequence[str]

    def tables(self) -> Sequence[Table]:
        rows: list[tuple[str, ...]] = [
            (name, *(numbers.significant(some.get(name)) for some in self.metrics)) for name in self.printed
        ]
        rows += [(label, *map(form, getattr(self, name))) for name, (label, form) in FACTS.items()]
        agreement = "none" if self.agreement is None else numbers.significant(self.agreement)
        notes = [f"{self.examples:,} examples of {self.task}. Agreement: {agreement} ({self.agreement_measure})."]
        if self.significance is not None:
            test, (first, second) = self.significance, self.models
            notes.append(
                f"{self.test[0].upper()}{self.test[1:]}: {second} minus {first} {test.difference:+.4g}, "
                f"95 % interval {test.low:+.4g} to {test.high:+.4g}, p = {test.p_value:.3g}."
            )
        return [Table((Column(""), *map(Column, self.models)), rows, notes=notes)]


def run(options: Options, progress: Progress) -> Found:
    """Both models on the same examples: metrics, agreement, significance, parameters, heads, bytes, speed."""
    import jax

    from headjax.evaluation.paired import compare
    from headjax.heads.head_id import all_heads
    from headjax.models.model import load

    models = (load(options.first), load(options.second))
    tasks = (_task(options, options.first, models[0]), _task(options, options.second, models[1]))
    with progress("comparing", 2, "model"):
        compared = compare(models, tasks, limit=options.limit, batch_size=options.batch_size, buckets=options.buckets)
    seconds = _seconds(models, tasks, options, progress)
    return Found(
        models=[options.first, options.second],
        metrics=[compared.first.metrics, compared.second.metrics],
        parameters=[model.num_parameters for model in models],
        heads=[len(all_heads(model.config)) for model in models],
        bytes=[sum(array.nbytes for array in jax.tree.leaves(model.params)) for model in models],
        seconds_per_batch=seconds,
        speed_up=seconds[0] / seconds[1],
        examples=compared.first.examples,
        headline=tasks[0].headline,
        agreement=compared.agreement,
        agreement_measure=compared.measure,
        test=compared.test,
        significance=compared.significance,
        task=tasks[0].name,
        printed=list(printed_metrics(compared.first.metrics, tasks[0])),
    )


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
