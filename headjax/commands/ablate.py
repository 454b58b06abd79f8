"""`headjax ablate`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headjax.commands.inputs import ABLATING, Examples, UntilDeadline, start, tell_time
from headjax.commands.options import TableOptions, TimedOptions, option
from headjax.commands.outputs import ExamplesResult, key
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

    metric: str = key("the primary metric metric, of the first mode as are the keys up to `test`")
    baseline: Mapping[str, float] = key("metrics with all heads")
    effect: Mapping[str, float] = key("change of the primary metric by head")
    effects: Mapping[str, Any] = key("change of every metric, by name and head")
    p_value: Mapping[str, float] = key("by head")
    test: str = key("the paired test")
    modes: Mapping[str, Any] = key("the same by mode")
    effects_by_mode: Mapping[str, HeadEffects]

    def tables(self) -> Sequence[Table]:
        return [_table(effects, mode, self.about) for mode, effects in self.effects_by_mode.items()]


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
    if options.max_time is None:
        tell_time(model, options, task=task, judged=len(modes) * (1.0 + ABLATING * len(all_heads(model.config))))
    first, limit = _effects(model, task, modes[0], options, options.limit, progress)
    measured = {modes[0]: first}
    untimed = dataclasses.replace(options, max_time=None)
    for mode in modes[1:]:  # on as many examples as the first had time for
        measured[mode], _ = _effects(model, task, mode, untimed, limit, progress)
    by_mode = {mode: effects_to_json(effects) for mode, effects in measured.items()}
    return Result(
        **by_mode[modes[0]],
        modes=by_mode,
        effects_by_mode=measured,
        **Examples(task, task, limit, dataclasses.replace(options, limit=limit)).described(selection=False),
    )


def _effects(
    model: Model, task: Task, mode: Any, options: Options, limit: int, progress: Progress
) -> tuple[HeadEffects, int]:
    """Return the effects in a mode, and the number of examples that they are of, 0 for all."""
    from headjax.evaluation.paired import head_effects
    from headjax.heads.ablation import ablate
    from headjax.heads.head_id import all_heads

    heads = len(all_heads(model.config))
    chosen: Any = {"limit": limit, "buckets": options.lengths}
    batches = UntilDeadline(task.batches(options.batch_size, **chosen), options, parts=len(options.mode))
    with progress(f"ablating {heads} heads, {mode}", task.count_batches(options.batch_size, **chosen), "batch") as bar:
        ablation = ablate(model, batches, mode, metrics=task.measure.of_model(), progress=bar)
    with progress("testing", heads, "head") as bar:
        effects = head_effects(ablation, task.measure, progress=bar)
    return effects, batches.count * options.batch_size if batches.ended else limit


def effects_to_json(effects: HeadEffects) -> dict[str, Any]:
    """Return the effects in a mode as JSON data."""
    return {
        "metric": effects.metric,
        "baseline": effects.baseline,
        "effect": effects.effects(),
        "effects": {name: effects.effects(name) for name in effects.baseline},
        "p_value": {head: comparison.p_value for head, comparison in effects.comparisons.items()},
        "test": effects.test,
    }


def _table(found: HeadEffects, mode: str, notes: Sequence[str]) -> Table:
    effects, metric = found.effects(), found.metric
    title = "without the head" if mode == "each" else "with only this head in its layer"
    heads = sorted(effects, key=lambda head: effects[head])
    picked = extremes(heads)
    columns = (
        Column("Head"),
        Column(f"Change of {metric} {title}", numbers.significant),
        Column("p", numbers.significant),
    )
    rows = [(str(head), effects[head], found.comparisons[head].p_value) for head in picked]
    which = "All heads" if len(picked) == len(heads) else f"The {SHOWN} heads at each extreme, of {len(heads)}"
    whole = f"{metric} with all heads: {numbers.significant(found.baseline[metric])}"
    return Table(columns, rows, notes=(f"{which}. {whole}. Test: {found.test}.", *notes))
