"""`headjax ablate`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headjax.commands.inputs import ABLATING, UntilDeadline, start, tell_time
from headjax.commands.options import TableOptions, TimedOptions, option
from headjax.commands.outputs import ExamplesResult, key, record
from headjax.commands.score import SHOWN, extremes
from headjax.core import numbers
from headjax.core.errors import HeadjaxError
from headjax.core.fields import unknown_name
from headjax.core.progress import Progress
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.evaluation.paired import HeadEffects
    from headjax.evaluation.task import Task
    from headjax.models.model import Model

MODES = ("each", "all-but-one")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(TimedOptions, TableOptions):
    """Options of `headjax ablate`."""

    mode: tuple[str, ...] = option(("each",), "each, all-but-one, or each,all-but-one", "MODES")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result(ExamplesResult):
    """Effects of ablations."""

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
    modes = options.mode
    for mode in modes:
        if mode not in MODES:
            raise HeadjaxError(f"--mode: {unknown_name('mode', mode, MODES)}")

    from headjax.heads.head_id import all_heads

    model, examples = start(options)
    task = examples.evaluation
    model = task.fit(model)
    tell_time(model, examples, judged=len(modes) * (1.0 + ABLATING * len(all_heads(model.config))))
    measured: dict[str, HeadEffects] = {}
    limit, timed = options.limit, options
    for mode in modes:  # the others on as many examples as the first had time for
        measured[mode], limit = _effects(model, task, mode, timed, limit, progress)
        timed = dataclasses.replace(options, max_time=None)
    judged = dataclasses.replace(examples, options=dataclasses.replace(options, limit=limit))
    return Result(first=measured[modes[0]], modes=measured, **judged.described(selection=False))


def _effects(
    model: Model, task: Task, mode: Any, options: Options, limit: int, progress: Progress
) -> tuple[HeadEffects, int]:
    """Return the effects in a mode, and the number of examples that they are of, 0 for all."""
    from headjax.evaluation.paired import head_effects
    from headjax.heads.ablation import ablate
    from headjax.heads.head_id import all_heads

    heads = len(all_heads(model.config))
    reading = options.reading | {"limit": limit}
    batches = UntilDeadline(task.batches(**reading), options, parts=len(options.mode))
    with progress(f"ablating {heads} heads, {mode}", task.count_batches(**reading), "batch") as bar:
        ablation = ablate(model, batches, mode, metrics=task.measure.of_model(), progress=bar)
    with progress("testing", heads, "head") as bar:
        effects = head_effects(ablation, task.measure, progress=bar)
    return effects, batches.count * options.batch_size if batches.ended else limit
