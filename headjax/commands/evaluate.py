"""`headjax evaluate`."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from headjax.commands.inputs import start
from headjax.commands.options import TaskOptions, argument, option
from headjax.commands.outputs import ABSENT, CommandResult, key, printed_metrics, record
from headjax.core import numbers
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Count
from headjax.core.progress import Progress
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.evaluation.paired import Compared
    from headjax.evaluation.task import Evaluation, Task
    from headjax.models.model import Model

BEAMS = 4
"""Beam size, that of Vaswani et al. 2017."""

REPEATS = 7
"""Timed forward passes of each of two models."""


class Options(TaskOptions):
    split: ClassVar[str] = "all"

    other: str = argument("OTHER", "another model directory, to compare with on the same examples", "", reads="model")
    beams: Count | None = option(None, f"beam size of translations, for BLEU (default: {BEAMS}; 0: no BLEU)")


class Result(CommandResult):
    measured: Evaluation = record("headjax.evaluation.task.Evaluation", "metrics", "examples")
    on: Task = record("headjax.evaluation.task.Task", "primary_metric", "higher_is_better", task="name")
    evaluation: Mapping[str, Any] = key()
    protocol: Mapping[str, Any] = key(
        "of wikitext2: `text`, `split`, `context`, `stride`, `begins_with`, `tokens`, `words`, `bytes`", ABSENT
    )
    bleu_signature: str = key("of translations", ABSENT)
    other: Mapping[str, Any] = key(
        "with OTHER: its `metrics`; `parameters` and `seconds_per_batch` of both, `speed_up`; `agreement` and its "
        "`measure`; the paired `test` and its `significance` (`difference`, `p_value`, `low`, `high`)",
        ABSENT,
    )
    notes: Sequence[str]

    def tables(self) -> Sequence[Table]:
        printed = printed_metrics(self.measured.metrics, self.on)
        columns = [Column(self.on.name), Column(f"{self.measured.examples:,} examples", numbers.significant)]
        rows: list[Sequence[Any]] = list(printed.items())
        if self.other is not ABSENT:
            columns = [Column(self.on.name), Column("MODEL", numbers.number), Column("OTHER", numbers.number)]
            rows = [(name, value, self.other["metrics"][name]) for name, value in printed.items()]
            rows += [(name.replace("_", " "), *self.other[name]) for name in ("parameters", "seconds_per_batch")]
        return [Table(columns, rows, notes=self.notes)]


def run(options: Options, progress: Progress) -> Result:
    """The model's loss and the task's metrics; beside another model also agreement, a paired test, and speed."""
    from headjax.data.forms.language import Translations
    from headjax.evaluation.predictions import translate
    from headjax.evaluation.specs import describe
    from headjax.evaluation.task import measure_task

    model, examples = start(options)
    task = examples.evaluation
    pairs = task.data.validation
    if options.beams and not isinstance(pairs, Translations):
        raise HeadjaxError(f"--beams: {task.name} is not about translations")
    notes: list[str] = []
    more: dict[str, Any] = {}
    if options.other:
        compared, more["other"] = _compared(model, task, options, progress)
        measured = compared.first
        notes += _words(compared)
    else:
        with progress("evaluating", task.count_batches(**options.reading), "batch") as bar:
            measured = measure_task(model, task, progress=bar, **options.reading)
    notes += measured.notes
    if task.data.info.get("protocol"):
        more["protocol"] = task.data.info["protocol"]
        notes.append("; ".join(f"{name}: {value}" for name, value in more["protocol"].items()) + ".")
    if isinstance(pairs, Translations) and options.beams != 0 and not options.other:
        if options.beams is None and importlib.util.find_spec("sacrebleu") is None:
            notes.append("BLEU needs sacrebleu: pip install 'headjax[translation]'.")
        else:
            beams, some = options.beams or BEAMS, pairs.first(options.limit)
            with progress("translating", task.count_batches(options.batch_size, limit=options.limit), "batch") as bar:
                bleu = translate(model, some, batch_size=options.batch_size, beams=beams, progress=bar).bleu
            measured = measured._replace(metrics={**measured.metrics, "bleu": bleu.score})
            more["bleu_signature"] = bleu.signature
            notes.append(f"BLEU: {bleu.signature}, beam size {beams}.")
    return Result(measured=measured, on=task, evaluation=describe(task, options.limit), notes=notes, **more)


def _compared(model: Model, task: Task, options: Options, progress: Progress) -> tuple[Compared, dict[str, Any]]:
    """Return the comparison with OTHER, and as data, with the seconds of a forward pass over a batch, in turns."""
    from headjax.core.timing import time_in_turns
    from headjax.evaluation.paired import compare
    from headjax.heads.agreement import LOSSES, in_parts
    from headjax.heads.batches import examples_in

    try:
        other, examples = start(dataclasses.replace(options, model=options.other))
    except HeadjaxError as error:
        text = str(error)
        raise HeadjaxError(text if text.startswith(options.other) else f"{options.other}: {text}") from None
    models, tasks = (model, other), (task, examples.evaluation)
    compared = compare(models, tasks, progress=progress, **options.reading)
    calls: dict[str, Any] = {}
    middle = task.count_batches(**options.reading) // 2  # neither the shortest nor the longest
    timed = [next(islice(own.batches(**options.reading), middle, None)) for own in tasks]
    rows = min(examples_in(in_parts(each, [batch], LOSSES)[0]) for each, batch in zip(models, timed, strict=True))
    for name, each, own, batch in zip(("first", "other"), models, tasks, timed, strict=True):
        part = {name: array[:rows] for name, array in batch.items()}
        calls[name] = lambda fitted=own.fit(each), part=part: fitted(part).hidden
    times = time_in_turns(calls, repeats=REPEATS, progress=progress)
    first, second = times["first"].median, times["other"].median
    return compared, {
        "metrics": compared.second.metrics,
        "parameters": [each.num_parameters for each in models],
        "seconds_per_batch": [first, second],
        "speed_up": first / second,
        **{name: getattr(compared, name) for name in ("agreement", "measure", "test", "significance")},
    }


def _words(compared: Compared) -> list[str]:
    """Return agreement and significance in words."""
    agreement = "none" if compared.agreement is None else numbers.significant(compared.agreement)
    notes = [f"{compared.first.examples:,} examples. Agreement: {agreement} ({compared.measure})."]
    if (test := compared.significance) is not None:
        notes.append(
            f"{compared.test[0].upper()}{compared.test[1:]}: OTHER minus MODEL {test.difference:+.4g}, 95 % interval "
            f"{test.low:+.4g} to {test.high:+.4g}, p = {test.p_value:.3g}."
        )
    return [*notes, *(f"OTHER: {note}" for note in compared.second.notes)]
