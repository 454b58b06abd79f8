"""Parts that commands on models share: fine-tuning, calibration of conversions, comparison."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headjax.commands.examples import Examples, ExamplesOptions, printed_metrics
from headjax.commands.options import option
from headjax.commands.results import ABSENT, OnExamples, found
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Count, NotNegative, Positive, StepsOrNone
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.evaluation.task import Task
    from headjax.models.model import Model
    from headjax.training.checkpoints import Checkpoints
    from headjax.training.objectives import Distillation


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuningOptions(ExamplesOptions):
    """Options of commands that can fine-tune the models that they make."""

    fine_tune: StepsOrNone = option(0, "fine-tune for N steps afterwards")
    learning_rate: Positive = option(5e-5, "peak learning rate", "R", requires="fine_tune")
    labels: NotNegative = option(1.0, "weight of the task's own loss", "W", requires="fine_tune")
    distill: NotNegative = option(1.0, "weight of the original model's logits", "W", requires="fine_tune")
    distill_hidden: NotNegative = option(
        0.0, "weight of the original model's last hidden states", "W", requires="fine_tune"
    )
    temperature: Positive = option(2.0, "temperature of the logits", "T", requires="fine_tune")
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
    )
    selected: Count | None = option(
        None,
        "calibrate: weigh errors by the inputs of N examples, in full batches; 0 is all (default: 1024 with "
        "--calibration, else no calibration)",
        name="--calibrate",
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
    from headjax.training.objectives import Distillation
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
    work: str | None = None,
) -> Model:
    """Return the student after its lessons; it keeps the output that it had.

    With a folder `work` a stopped run continues from its checkpoints there, which its end deletes.
    """
    from headjax.training.distillation import distill

    batches = task.train_batches(options.batch_size, seed=options.seed, buckets=options.buckets)
    models = task.fit(student), task.fit(teacher)
    described = (settings, options.batch_size, options.buckets, task.name, [model.config for model in models])
    with (
        _checkpoints(work, described, [model.params for model in models]) as checkpoints,
        progress("fine-tuning", settings.steps, "step") as bar,
    ):
        tuned = distill(*models, batches, settings, checkpoints=checkpoints, progress=bar).model
    return student.replace(params=tuned.params, history=tuned.history)


@contextlib.contextmanager
def _checkpoints(work: str | None, described: Any, arrays: Any) -> Iterator[Checkpoints | None]:
    """Yield the checkpoints of a fine-tuning in a folder, deleted once it has ended well; None without a folder."""
    if work is None:
        yield None
        return
    from headjax.storage.kept import key_of_study
    from headjax.storage.paths import path_of, remove_tree
    from headjax.training.checkpoints import Checkpoints

    folder = path_of(work) / "recovery" / key_of_study(described, arrays)[:16]
    with Checkpoints(folder, keep=1) as checkpoints:
        yield checkpoints
    remove_tree(folder)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuned(OnExamples):
    """A result of models that may have been fine-tuned."""

    training: Mapping[str, Any] = found("with `--fine-tune`", default=ABSENT)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Changed(Tuned):
    """A model that surgery has made, beside the one before.

    Attributes:
        compared: heads, feed-forward units where they changed, parameters and the metrics that are printed, before and
            after.
    """

    parameters: int = found()
    parameters_before: int = found()
    metrics: Mapping[str, float] = found("with a task")
    metrics_before: Mapping[str, float] = found()
    model: str = found("its folder", said="model")
    compared: Sequence[Sequence[Any]]

    def comparison(self) -> Table:
        """Return sizes and metrics of both models, with notes on the examples that were read."""
        columns = (Column(""), Column("Before", numbers.number), Column("After", numbers.number))
        return Table(columns, self.compared, notes=self.about)


def compared(before: Model, after: Model, metrics: Sequence[Mapping[str, float]], task: Task | None) -> dict[str, Any]:
    """Return the fields of `Changed` about two models.

    Args:
        before, after: the models.
        metrics: the task's, of both.
        task: the task.
    """
    from headjax.heads.head_id import all_heads

    models = (before, after)
    units = [
        sum(layer.feed_forward.hidden for stack in model.config.stacks().values() for layer in stack.layers)
        for model in models
    ]
    rows: dict[str, Sequence[float]] = {
        "heads": [len(all_heads(model.config)) for model in models],
        **({"feed-forward units": units} if units[0] != units[1] else {}),
        "parameters": [model.num_parameters for model in models],
    }
    if task is not None:
        rows |= {name: [some[name] for some in metrics] for name in printed_metrics(metrics[0], task)}
    return {
        "parameters_before": before.num_parameters,
        "parameters": after.num_parameters,
        "metrics_before": metrics[0],
        "metrics": metrics[1],
        "compared": [(name, *values) for name, values in rows.items()],
    }


def evaluate_each(
    models: Sequence[Model], task: Task | None, options: FineTuningOptions, progress: Progress
) -> list[Mapping[str, float]]:
    """Return the task's metrics of each model, on as much of it as the options say; none without a task."""
    from headjax.evaluation.task import evaluate_task

    if task is None:
        return [{} for _ in models]
    chosen: Any = {"limit": options.limit, "batch_size": options.batch_size, "buckets": options.buckets}
    metrics: list[Mapping[str, float]] = []
    with progress("evaluating", len(models), "model") as bar:
        for model in models:
            metrics.append(evaluate_task(model, task, **chosen))
            bar(len(metrics), {})
    return metrics


def export_of(model: Model) -> dict[str, str | None] | None:
    """Return how `headjax export` would write an imported model, or why it could not; None of any other model."""
    from headjax.hub.exporting import imported_from, layout_of_export
    from headjax.hub.table import InexpressibleError

    origin = imported_from(model)
    if origin is None:
        return None
    try:
        family, layout = layout_of_export(model)
    except InexpressibleError as error:
        return {"from": origin, "family": None, "layout": None, "reason": str(error)}
    return {"from": origin, "family": family, "layout": layout, "reason": None}


def told_export(export: Mapping[str, str | None] | None) -> list[str]:
    """Return a line about an export in other shapes or another family than before, or about none."""
    if export is None or (export["family"] == export["from"] and export["layout"] == "native"):
        return []
    if export["layout"] is None:
        return [f"export to Hugging Face: {export['reason']}"]
    full = ", zeros in place of the removed parameters, so neither smaller nor faster" * (export["layout"] == "padded")
    return [f"export to Hugging Face: as {export['family']}, layout {export['layout']}{full}"]
