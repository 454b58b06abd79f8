"""Options and steps of commands that change models: fine-tuning with the original as teacher, and a comparison."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from headjax.commands.examples import Examples, ExamplesOptions, printed_metrics
from headjax.commands.options import option
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Count, NotNegative, Positive, Ramp, StepsOrNone, number_or_ramp
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.evaluation.task import Task
    from headjax.models.model import Model
    from headjax.training.distillation import Distillation


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuningOptions(ExamplesOptions):
    """Options of commands that can fine-tune the models that they make."""

    fine_tune: StepsOrNone = option(0, "fine-tune for N steps afterwards")
    learning_rate: Positive = option(5e-5, "peak learning rate", "R", requires="fine_tune")
    labels: NotNegative | Ramp = option(
        1.0, "weight of the task's own loss; 0.1:0.5 rises", "W", read=number_or_ramp, requires="fine_tune"
    )
    distill: NotNegative | Ramp = option(
        1.0, "weight of the original model's logits", "W", read=number_or_ramp, requires="fine_tune"
    )
    distill_hidden: NotNegative | Ramp = option(
        0.0, "weight of the original model's last hidden states", "W", read=number_or_ramp, requires="fine_tune"
    )
    distill_attention: NotNegative | Ramp = option(
        0.0,
        "weight of the cosines to the original model's attention outputs",
        "W",
        read=number_or_ramp,
        requires="fine_tune",
    )
    temperature: Positive | Ramp = option(
        2.0, "temperature of the logits; 2:1 falls along the steps", "T", read=number_or_ramp, requires="fine_tune"
    )
    seed: int = option(0, "seed of random choices")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConversionOptions(FineTuningOptions):
    """Options of commands that convert models; the examples that they choose are those to calibrate on."""

    select: str = option(
        "",
        "calibrate on other examples than --train: validation, or a file or task",
        "SPLIT|FILE",
        name="--calibration",
        reads=True,
        also=("--select",),
    )
    selected: Count | None = option(
        None,
        "calibrate: weigh errors by the inputs of N examples, in full batches; 0 is all (default: 1024 with "
        "--calibration, else no calibration)",
        name="--calibrate",
        also=("--selected",),
    )

    def calibration(self, examples: Examples, batch_size: int) -> Calibration:
        """Return the batches to calibrate on: none unless the options ask for some."""
        wanted = self.selected if self.selected is not None or not self.select else examples.selected
        if wanted is None:
            return Calibration(0, batch_size, 0)
        count = min(wanted or examples.selection.count(), examples.selection.count())
        size = min(batch_size, count)
        return Calibration(count // size, size, count - count % size)


class Calibration(NamedTuple):
    """Examples to calibrate on.

    Attributes:
        batches: number of batches.
        batch_size: number of examples of a batch.
        examples: number of examples in all batches.
    """

    batches: int
    batch_size: int
    examples: int


def fine_tuning_of(options: FineTuningOptions) -> Distillation | None:
    """Return the fine-tuning that the options ask for; None is no training.

    Raises:
        HeadjaxError: there is no task to train on.
    """
    from headjax.training.distillation import Distillation
    from headjax.training.optimizer import AdamW, LinearDecay

    if not options.fine_tune:
        return None
    if not options.task:
        raise HeadjaxError("--task: needed to fine-tune on")
    return Distillation(
        steps=options.fine_tune,
        optimizer=AdamW(schedule=LinearDecay(peak=options.learning_rate, warmup_steps=options.fine_tune // 10)),
        task=options.labels,
        logits=options.distill,
        hidden=options.distill_hidden,
        attention=options.distill_attention,
        temperature=options.temperature,
        seed=options.seed,
    )


def fine_tune(
    student: Model,
    teacher: Model,
    task: Task,
    settings: Distillation,
    options: FineTuningOptions,
    progress: Progress,
) -> Model:
    """Return the student after its lessons; it keeps the output that it had."""
    from headjax.training.distillation import distill

    batches = task.train_batches(options.batch_size, seed=options.seed, buckets=options.buckets)
    with progress("fine-tuning", settings.steps, "step") as bar:
        tuned = distill(task.fit(student), task.fit(teacher), batches, settings, progress=bar).model
    return student.replace(params=tuned.params, history=tuned.history)


class Metrics(NamedTuple):
    """A task's metrics before and after surgery; both empty without a task.

    Attributes:
        before, after: the metrics by name.
        task: the task.
    """

    before: Mapping[str, float]
    after: Mapping[str, float]
    task: Task | None = None


def evaluate_pair(
    before: Model, after: Model, task: Task | None, options: FineTuningOptions, progress: Progress
) -> Metrics:
    """Return the task's metrics of both models, on as much of it as the options say."""
    if task is None:
        return Metrics({}, {})
    found = []
    with progress("evaluating", 2, "model") as bar:
        for model in (before, after):
            found.append(evaluated(model, task, options))
            bar(len(found), {})
    return Metrics(found[0], found[1], task)


def evaluated(model: Model, task: Task | None, options: FineTuningOptions) -> Mapping[str, float]:
    """Return the task's metrics of one model; none without a task."""
    from headjax.evaluation.task import evaluate_task

    if task is None:
        return {}
    return evaluate_task(model, task, limit=options.limit, batch_size=options.batch_size, buckets=options.buckets)


def comparison_table(before: Model, after: Model, metrics: Metrics, notes: tuple[str, ...] = ()) -> Table:
    """Return heads, parameters and metrics of both models, with notes on the examples that were read."""
    from headjax.heads.head_id import all_heads

    rows: list[tuple[str, float, float]] = [
        ("heads", len(all_heads(before.config)), len(all_heads(after.config))),
        ("parameters", before.num_parameters, after.num_parameters),
    ]
    before_units, after_units = (
        sum(layer.feed_forward.hidden for stack in model.config.stacks().values() for layer in stack.layers)
        for model in (before, after)
    )
    if before_units != after_units:
        rows.insert(1, ("feed-forward units", before_units, after_units))
    if metrics.task is not None:
        shown = printed_metrics(metrics.before, metrics.task)
        rows += [(name, value, metrics.after[name]) for name, value in shown.items()]
    return Table((Column(""), Column("Before", _number), Column("After", _number)), rows, notes=notes)


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else numbers.significant(value)
