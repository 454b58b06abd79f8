"""`headjax evaluate`."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from headjax.commands.inputs import printed_metrics, start
from headjax.commands.options import TableOptions, TaskOptions, argument, option
from headjax.commands.outputs import ABSENT, CommandResult, key
from headjax.core import numbers
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Count
from headjax.core.progress import Progress
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.data.forms.language import Translations
    from headjax.evaluation.paired import Compared
    from headjax.evaluation.predictions import Bleu
    from headjax.evaluation.task import Task
    from headjax.models.model import Model

BEAMS = 4
"""Beam size, that of Vaswani et al. 2017."""

REPEATS = 7
"""Timed forward passes of each of two models."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(TaskOptions, TableOptions):
    """Options of `headjax evaluate`."""

    split: ClassVar[str] = "all"

    other: str = argument("OTHER", "another model directory, to compare with on the same examples", "", reads="model")
    beams: Count | None = option(None, f"beam size of translations, for BLEU (default: {BEAMS}; 0: no BLEU)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result(CommandResult):
    """Metrics of a model on a task."""

    metrics: Mapping[str, float] = key()
    examples: int = key()
    task: str = key()
    evaluation: Mapping[str, Any] = key()
    primary_metric: str = key("the main metric")
    higher_is_better: bool = key("of the primary metric")
    protocol: Mapping[str, Any] = key(
        "of wikitext2: `text`, `split`, `context`, `stride`, `begins_with`, `tokens`, `words`, `bytes`", default=ABSENT
    )
    bleu_signature: str = key("of translations", default=ABSENT)
    other: Mapping[str, Any] = key(
        "with OTHER: its `metrics`; `parameters` and `seconds_per_batch` of both, `speed_up`; `agreement` and its "
        "`measure`; the paired `test` and its `significance` (`difference`, `p_value`, `low`, `high`)",
        default=ABSENT,
    )
    printed: Mapping[str, float]
    notes: Sequence[str]

    def tables(self) -> Sequence[Table]:
        columns = [Column(self.task), Column(f"{self.examples:,} examples", numbers.significant)]
        rows: list[Sequence[Any]] = list(self.printed.items())
        if self.other is not ABSENT:
            columns = [Column(self.task), Column("MODEL", numbers.number), Column("OTHER", numbers.number)]
            rows = [(name, value, self.other["metrics"][name]) for name, value in self.printed.items()]
            rows += [(name.replace("_", " "), *self.other[name]) for name in ("parameters", "seconds_per_batch")]
        return [Table(columns, rows, notes=self.notes)]


def _words(other: Mapping[str, Any], examples: int) -> list[str]:
    """Return agreement and significance in words."""
    agreement = "none" if other["agreement"] is None else numbers.significant(other["agreement"])
    notes = [f"{examples:,} examples. Agreement: {agreement} ({other['measure']})."]
    if (test := other["significance"]) is not None:
        notes.append(
            f"{other['test'][0].upper()}{other['test'][1:]}: OTHER minus MODEL {test.difference:+.4g}, 95 % interval "
            f"{test.low:+.4g} to {test.high:+.4g}, p = {test.p_value:.3g}."
        )
    return notes


def run(options: Options, progress: Progress) -> Result:
    """The model's loss and the task's metrics; beside another model also agreement, a paired test, and speed."""
    from headjax.data.forms.language import Translations
    from headjax.evaluation.paired import compare
    from headjax.evaluation.selection import describe
    from headjax.evaluation.task import measure_task

    model, examples = start(options)
    task = examples.evaluation
    pairs = task.data.validation
    if options.beams and not isinstance(pairs, Translations):
        raise HeadjaxError(f"--beams: {task.name} is not about translations")
    chosen: Any = {"limit": options.limit, "batch_size": options.batch_size, "buckets": options.lengths}
    notes: list[str] = []
    more: dict[str, Any] = {}
    if options.other:
        other = _other(options)
        compared = compare((model, other[0]), (task, other[1]), progress=progress, **chosen)
        measured = compared.first
        more["other"] = _pair((model, other[0]), (task, other[1]), compared, options, progress)
        notes += _words(more["other"], measured.examples)
        notes += [f"OTHER: {note}" for note in compared.second.notes]
    else:
        batches = task.count_batches(options.batch_size, limit=options.limit, buckets=options.lengths)
        with progress("evaluating", batches, "batch") as bar:
            measured = measure_task(model, task, progress=bar, **chosen)
    metrics = dict(measured.metrics)
    notes += measured.notes
    if task.data.info.get("protocol"):
        more["protocol"] = task.data.info["protocol"]
        notes.append("; ".join(f"{name}: {value}" for name, value in more["protocol"].items()) + ".")
    if isinstance(pairs, Translations) and options.beams != 0 and not options.other:
        if options.beams is None and importlib.util.find_spec("sacrebleu") is None:
            notes.append("BLEU needs sacrebleu: pip install '.[translation]' from a checkout.")
        else:
            bleu = _bleu(model, task, pairs, options, progress)
            metrics["bleu"], more["bleu_signature"] = bleu.score, bleu.signature
            notes.append(f"BLEU: {bleu.signature}, beam size {options.beams or BEAMS}.")
    return Result(
        metrics=metrics,
        examples=measured.examples,
        task=task.name,
        evaluation=describe(task, options.limit),
        primary_metric=task.primary_metric,
        higher_is_better=task.higher_is_better,
        printed=printed_metrics(metrics, task),
        notes=notes,
        **more,
    )


def _other(options: Options) -> tuple[Model, Task]:
    """Return the other model and the task as it reads it; the error of one that does not fit names the model."""
    try:
        model, examples = start(dataclasses.replace(options, model=options.other))
    except HeadjaxError as error:
        text = str(error)
        raise HeadjaxError(text if text.startswith(options.other) else f"{options.other}: {text}") from None
    return model, examples.evaluation


def _pair(
    models: tuple[Model, Model], tasks: tuple[Task, Task], compared: Compared, options: Options, progress: Progress
) -> dict[str, Any]:
    """Return the comparison of two models, with the median seconds of a forward pass over a batch, in turns."""
    from headjax.core.timing import time_in_turns

    fitted = [task.fit(model) for model, task in zip(models, tasks, strict=True)]
    chosen: Any = {"limit": options.limit, "buckets": options.lengths}
    middle = [task.count_batches(options.batch_size, **chosen) // 2 for task in tasks]  # neither shortest nor longest
    batches = [
        next(islice(task.batches(options.batch_size, **chosen), number, None))
        for task, number in zip(tasks, middle, strict=True)
    ]

    def call(number: int) -> Any:
        return lambda: fitted[number](batches[number]).hidden

    timed = time_in_turns({"first": call(0), "other": call(1)}, repeats=REPEATS, progress=progress)
    first, second = timed["first"].median, timed["other"].median
    return {
        "metrics": compared.second.metrics,
        "parameters": [model.num_parameters for model in models],
        "seconds_per_batch": [first, second],
        "speed_up": first / second,
        **{name: getattr(compared, name) for name in ("agreement", "measure", "test", "significance")},
    }


def _bleu(model: Model, task: Task, pairs: Translations, options: Options, progress: Progress) -> Bleu:
    from headjax.evaluation.predictions import translate

    batches = task.count_batches(options.batch_size, limit=options.limit)
    with progress("translating", batches, "batch") as bar:
        some, beams = pairs.first(options.limit), options.beams or BEAMS
        return translate(model, some, batch_size=options.batch_size, beams=beams, progress=bar).bleu
