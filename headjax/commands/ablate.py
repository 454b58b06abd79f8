"""`headjax ablate`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headjax.commands.inputs import ABLATING, UntilDeadline, start, tell_time
from headjax.commands.options import TimedOptions, option
from headjax.commands.outputs import ExamplesResult, key, record
from headjax.commands.score import SHOWN, extremes
from headjax.core import numbers
from headjax.core.errors import HeadjaxError
from headjax.core.fields import unknown_name
from headjax.core.progress import Progress
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.evaluation.paired import HeadEffects

MODES = ("each", "all-but-one")


class Options(TimedOptions):
    mode: tuple[str, ...] = option(("each",), "each, all-but-one, or each,all-but-one", "MODES")


class Result(ExamplesResult):
    first: HeadEffects = record("headjax.evaluation.paired.HeadEffects")
    modes: Mapping[str, HeadEffects] = key("the keys up to `test`, which are of the first mode, by mode")

    def tables(self) -> Sequence[Table]:
        tables = []
        for mode, found in self.modes.items():
            heads = sorted(found.effect, key=lambda head: found.effect[head])
            picked = extremes(heads)
            without = "without the head" if mode == "each" else "with only this head in its layer"
            columns = (
                Column("Head"),
                Column(f"Change of {found.metric} {without}", numbers.significant),
                Column("p", numbers.significant),
            )
            rows = [(str(head), found.effect[head], found.p_value[head]) for head in picked]
            which = "All heads" if len(picked) == len(heads) else f"The {SHOWN} heads at each extreme, of {len(heads)}"
            whole = f"{found.metric} with all heads: {numbers.significant(found.baseline[found.metric])}"
            tables.append(Table(columns, rows, notes=(f"{which}. {whole}. Test: {found.test}.", *self.about)))
        return tables


def run(options: Options, progress: Progress) -> Result:
    """The effect of removing each head, and of keeping only one of its layer, with paired tests."""
    modes: Any = options.mode
    for mode in modes:
        if mode not in MODES:
            raise HeadjaxError(f"--mode: {unknown_name('mode', mode, MODES)}")

    from headjax.evaluation.paired import head_effects
    from headjax.heads.ablation import ablate
    from headjax.heads.head_id import all_heads

    model, examples = start(options)
    task = examples.evaluation
    model, heads = task.fit(model), len(all_heads(model.config))
    tell_time(model, examples, judged=len(modes) * (1.0 + ABLATING * heads))
    effects: dict[str, HeadEffects] = {}
    for mode in modes:
        batches = UntilDeadline(task.batches(**options.reading), options, parts=len(modes))
        count = task.count_batches(**options.reading)
        with progress(f"ablating {heads} heads, {mode}", count, "batch") as bar:
            ablation = ablate(model, batches, mode, metrics=task.measure.of_model(), progress=bar)
        with progress("testing", heads, "head") as bar:
            effects[mode] = head_effects(ablation, task.measure, progress=bar)
        limit = batches.count * options.batch_size if batches.ended else options.limit
        options = dataclasses.replace(options, limit=limit, max_time=None)  # the others on as many examples
    described = dataclasses.replace(examples, options=options).described(selection=False)
    return Result(first=effects[modes[0]], modes=effects, **described)
