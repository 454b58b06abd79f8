"""`headjax evaluate`."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping
from typing import Any

from headjax.commands.examples import TaskOptions, open_model_and_task, printed_metrics
from headjax.commands.options import Result, option
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Count
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Column, Table

BEAMS = 4
"""Hypotheses of beam search, as Vaswani et al. 2017 have them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(TaskOptions):
    """Options of `headjax evaluate`."""

    beams: Count | None = option(None, f"translate with N hypotheses, for BLEU (default: {BEAMS}; 0: no BLEU)")


def run(options: Options, progress: Progress) -> Result:
    """The model's loss and the task's metrics."""
    from headjax.data.forms.language import Translations
    from headjax.evaluation.selection import describe
    from headjax.evaluation.task import measure_task

    beams = options.beams if options.beams is not None else BEAMS
    model, task = open_model_and_task(options, split="all")
    pairs = task.data.validation
    if options.beams and not isinstance(pairs, Translations):
        raise HeadjaxError(f"--beams: {task.name} is not about translations")
    chosen: Any = {"limit": options.limit, "buckets": options.buckets}
    with progress("evaluating", task.count_batches(options.batch_size, **chosen), "batch") as bar:
        found = measure_task(model, task, batch_size=options.batch_size, progress=bar, **chosen)
    data: dict[str, Any] = {
        "metrics": found.metrics,
        "examples": found.examples,
        "task": task.name,
        "evaluation": describe(task, options.limit),
        "headline": task.headline,
        "higher_is_better": task.higher_is_better,
    }
    notes: tuple[str, ...] = ()
    protocol: Mapping[str, Any] = task.data.info.get("protocol", {})
    if protocol:
        data["protocol"] = protocol
        notes = ("; ".join(f"{name}: {value}" for name, value in protocol.items()) + ".",)
    if beams and isinstance(pairs, Translations):
        from headjax.evaluation.translation import translate

        if options.beams is None and importlib.util.find_spec("sacrebleu") is None:
            notes = ("BLEU needs sacrebleu: pip install '.[translation]' from a checkout.",)
        else:
            some = pairs.first(options.limit)
            batches = task.count_batches(options.batch_size, limit=options.limit)
            with progress("translating", batches, "batch") as bar:
                bleu = translate(model, some, batch_size=options.batch_size, beams=beams, progress=bar).bleu
            data |= {"metrics": {**found.metrics, "bleu": bleu.score}, "bleu_signature": bleu.signature}
            notes = (f"BLEU: {bleu.signature}, {beams} beams.",)
    columns = (Column(task.name), Column(f"{found.examples:,} examples", numbers.significant))
    return Result(data, [Table(columns, list(printed_metrics(data["metrics"], task).items()), notes=notes)])
