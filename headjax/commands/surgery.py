"""Results of commands that change a model: sizes and metrics before and after."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headjax.commands.examples import ExamplesOptions, printed_metrics
from headjax.commands.results import OnExamples, found
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.evaluation.task import Task
    from headjax.models.model import Model


@dataclasses.dataclass(frozen=True, kw_only=True)
class Changed(OnExamples):
    """A changed model, and the one before."""

    parameters: int = found()
    parameters_before: int = found()
    metrics: Mapping[str, float] = found("with a task")
    metrics_before: Mapping[str, float] = found()
    model: str = found("its folder", said="model")
    compared: Sequence[Sequence[Any]]
    written: str = ""

    def message(self) -> str:
        return "; ".join(filter(None, (self.written, super().message())))

    def comparison(self) -> Table:
        """Return sizes and metrics of both models, with notes on the examples that were read."""
        columns = (Column(""), Column("Before", numbers.number), Column("After", numbers.number))
        return Table(columns, self.compared, notes=self.about)


def compared(before: Model, after: Model, metrics: Sequence[Mapping[str, float]], task: Task | None) -> dict[str, Any]:
    """Return the fields of `Changed` about two models and the task's metrics of both."""
    from headjax.core.tensors import count
    from headjax.heads.head_id import all_heads

    models = (before, after)
    parameters = [count(model.config.tensors()) for model in models]  # the arrays of the first may be gone
    units = [
        sum(layer.hidden for stack in model.config.stacks().values() for layer in stack.layers) for model in models
    ]
    rows: dict[str, Sequence[float]] = {
        "heads": [len(all_heads(model.config)) for model in models],
        **({"feed-forward units": units} if units[0] != units[1] else {}),
        "parameters": parameters,
    }
    if task is not None:
        rows |= {name: [some[name] for some in metrics] for name in printed_metrics(metrics[0], task)}
    return {
        "parameters_before": parameters[0],
        "parameters": parameters[1],
        "metrics_before": metrics[0],
        "metrics": metrics[1],
        "compared": [(name, *values) for name, values in rows.items()],
    }


def evaluate_each(
    models: Sequence[Model], task: Task | None, options: ExamplesOptions, progress: Progress
) -> list[Mapping[str, float]]:
    """Return the task's metrics of each model, on as much of it as the options say; none without a task."""
    from headjax.evaluation.task import evaluate_task

    if task is None:
        return [{} for _ in models]
    chosen: Any = {"limit": options.limit, "buckets": options.buckets}
    batches = task.count_batches(options.batch_size, **chosen)

    def evaluated(number: int, model: Model) -> Mapping[str, float]:
        title = f"evaluating model {number} of {len(models)}" if len(models) > 1 else "evaluating"
        with progress(title, batches, "batch") as bar:
            return evaluate_task(model, task, batch_size=options.batch_size, progress=bar, **chosen)

    return [evaluated(number, model) for number, model in enumerate(models, start=1)]
