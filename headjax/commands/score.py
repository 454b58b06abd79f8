"""`headjax score`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headjax.commands.inputs import SCORING, UntilDeadline, start, tell_time
from headjax.commands.options import ExamplesOptions, TimedOptions
from headjax.commands.outputs import ExamplesResult, key, record
from headjax.core import numbers
from headjax.core.progress import Progress
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.heads.scoring import Scores

SHOWN = 5
"""Heads printed at either end."""

PRINTED = ("importance", "importance_token", "fisher", "normalized_entropy", "distance")
"""Scores that are printed."""


class Options(TimedOptions, ExamplesOptions):
    """No options but those of all commands that score examples."""


class Result(ExamplesResult):
    measured: Scores = record("headjax.heads.scoring.Scores", "loss", "examples", "seconds", scores="values")
    definitions: Mapping[str, str] = key("of the scores, by name")

    def tables(self) -> Sequence[Table]:
        from headjax.heads.ordering import by_score

        scores, examples, seconds = self.measured.values, self.measured.examples, self.measured.seconds
        order = by_score(scores["importance"])
        picked = extremes(order)
        rows = [(str(head), *(scores[name][head] for name in PRINTED)) for head in picked]
        columns = (Column("Head"), *(Column(name, numbers.significant) for name in PRINTED))
        which = "Heads by importance" if len(picked) == len(order) else f"The {SHOWN} heads at each extreme"
        note = f"{which}, of {len(order)}, by {examples:,} examples in {numbers.duration(seconds)}."
        return [Table(columns, rows, notes=(note, *self.about))]


def extremes(order: Sequence[Any]) -> Sequence[Any]:
    """Return the first and the last of an order; all of a short one."""
    return order if len(order) <= 2 * SHOWN else (*order[:SHOWN], *order[-SHOWN:])


def run(options: Options, progress: Progress) -> Result:
    """Every head score in one pass; the five least and most important heads are printed."""
    from headjax.heads.scoring import DESCRIPTIONS, score_heads

    model, examples = start(options)
    model, batches = examples.selection.fit(model), examples.scoring()
    timed = UntilDeadline(batches, options)
    tell_time(model, examples, batches=batches, chosen=[SCORING])
    with progress("scoring", len(batches), "batch") as bar:
        scores = score_heads(model, timed, progress=bar)
    if timed.ended:
        examples = dataclasses.replace(examples, number=timed.count * options.batch_size)
    definitions = {name: DESCRIPTIONS[name] for name in scores.values}
    return Result(measured=scores, definitions=definitions, **examples.described(evaluation=False))
