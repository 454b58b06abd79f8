"""`headjax score`."""

from __future__ import annotations

import dataclasses

from headjax.commands.examples import ExamplesOptions, open_model_and_examples
from headjax.commands.options import Result, option
from headjax.core.progress import Progress
from headjax.report import numbers
from headjax.report.tables import Column, Table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ExamplesOptions):
    """Options of `headjax score`."""

    normalize: bool = option(False, "divide scores by the l2 norm of their layer's")


def run(options: Options, progress: Progress) -> Result:
    """Every head score in one pass; the five least and most important heads are printed."""
    from headjax.heads.ordering import by_score
    from headjax.heads.scores import SCORES, normalize_layers, score_heads

    model, examples = open_model_and_examples(options)
    model = examples.selection.fit(model)
    batches = examples.selection_batches()
    with progress("scoring", len(batches), "batch") as bar:
        scores = score_heads(model, batches, progress=bar)
    described = examples.described(evaluation=False)
    values = {
        name: normalize_layers(by_head) if options.normalize else by_head for name, by_head in scores.values.items()
    }
    data = {
        "scores": {name: {str(head): value for head, value in by_head.items()} for name, by_head in values.items()},
        "examples": scores.examples,
        **described.data,
        "seconds": scores.seconds,
        "loss": scores.loss,
        "normalized": options.normalize,
        "definitions": {name: SCORES[name].description for name in values},
    }
    shown = ("importance", "importance_token", "fisher", "normalized_entropy", "output_norm")
    order = by_score(values["importance"])
    picked = order if len(order) <= 2 * SHOWN else (*order[:SHOWN], *order[-SHOWN:])
    columns = (Column("Head"), *(Column(name, numbers.significant) for name in shown))
    rows = [(str(head), *(values[name][head] for name in shown)) for head in picked]
    note = f"Least and most important heads of {len(order)}, by {scores.examples:,} examples in {scores.seconds:.1f} s."
    return Result(data, [Table(columns, rows, notes=(note, *described.notes))])


SHOWN = 5
"""Heads printed at either end."""
