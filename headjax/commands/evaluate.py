"""`headjax evaluate`."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headjax.commands.examples import TaskOptions, open_model_and_task, printed_metrics
from headjax.commands.options import option
from headjax.commands.results import ABSENT, Result, found
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Count
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.data.forms.language import Translations
    from headjax.evaluation.task import Task
    from headjax.evaluation.translation import Bleu
    from headjax.models.model import Model

BEAMS = 4
"""Hypotheses of beam search, as Vaswani et al. 2017 have them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(TaskOptions):
    """Options of `headjax evaluate`."""

    beams: Count | None = option(None, f"translate with N hypotheses, for BLEU (default: {BEAMS}; 0: no BLEU)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found(Result):
    """Metrics of a model on a task.

    Attributes:
        printed: the metrics that the table shows.
        notes: how they were measured.
    """

    metrics: Mapping[str, float] = found()
    examples: int = found()
    task: str = found()
    evaluation: Mapping[str, Any] = found()
    headline: str = found("the main metric")
    higher_is_better: bool = found("of the headline")
    protocol: Mapping[str, Any] = found(
        "of wikitext2: `text`, `split`, `context`, `stride`, `begins_with`, `tokens`, `words`, `bytes`", default=ABSENT
    )
    bleu_signature: str = found("of translations", default=ABSENT)
    printed: Mapping[str, float]
    notes: Sequence[str]

    def tables(self) -> Sequence[Table]:
        columns = (Column(self.task), Column(f"{self.examples:,} examples", numbers.significant))
        return [Table(columns, list(self.printed.items()), notes=self.notes)]


def run(options: Options, progress: Progress) -> Found:
    """The model's loss and the task's metrics."""
    from headjax.data.forms.language import Translations
    from headjax.evaluation.selection import describe
    from headjax.evaluation.task import measure_task

    model, task = open_model_and_task(options, split="all")
    pairs = task.data.validation
    if options.beams and not isinstance(pairs, Translations):
        raise HeadjaxError(f"--beams: {task.name} is not about translations")
    chosen: Any = {"limit": options.limit, "buckets": options.buckets}
    with progress("evaluating", task.count_batches(options.batch_size, **chosen), "batch") as bar:
        measured = measure_task(model, task, batch_size=options.batch_size, progress=bar, **chosen)
    metrics, notes, more = dict(measured.metrics), [], {}
    if task.data.info.get("protocol"):
        more["protocol"] = task.data.info["protocol"]
        notes.append("; ".join(f"{name}: {value}" for name, value in more["protocol"].items()) + ".")
    if isinstance(pairs, Translations) and options.beams != 0:
        if options.beams is None and importlib.util.find_spec("sacrebleu") is None:
            notes.append("BLEU needs sacrebleu: pip install '.[translation]' from a checkout.")
        else:
            bleu = _bleu(model, task, pairs, options, progress)
            metrics["bleu"], more["bleu_signature"] = bleu.score, bleu.signature
            notes.append(f"BLEU: {bleu.signature}, {options.beams or BEAMS} beams.")
    return Found(
        metrics=metrics,
        examples=measured.examples,
        task=task.name,
        evaluation=describe(task, options.limit),
        headline=task.headline,
        higher_is_better=task.higher_is_better,
        printed=printed_metrics(metrics, task),
        notes=notes,
        **more,
    )


def _bleu(model: Model, task: Task, pairs: Translations, options: Options, progress: Progress) -> Bleu:
    from headjax.evaluation.translation import translate

    batches = task.count_batches(options.batch_size, limit=options.limit)
    with progress("translating", batches, "batch") as bar:
        some, beams = pairs.first(options.limit), options.beams or BEAMS
        return translate(model, some, batch_size=options.batch_size, beams=beams, progress=bar).bleu
