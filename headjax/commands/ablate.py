"""`headjax ablate`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headjax.commands.examples import ExamplesOptions, open_model_and_examples
from headjax.commands.options import option
from headjax.commands.results import OnExamples, found
from headjax.commands.score import SHOWN, extremes
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Size
from headjax.core.progress import Progress
from headjax.core.serialize import unknown_name
from headjax.report import numbers
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.evaluation.paired import HeadEffects
    from headjax.evaluation.task import Task
    from headjax.models.model import Model

MODES = ("each", "all-but-one")


def size_in_bytes(text: str) -> int:
    """Return `512MB` or `2GB` in bytes, in powers of 1000.

    Raises:
        ValueError: the text is no size above 0.
    """
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "B": 1}
    unit = next((unit for unit in units if text.upper().endswith(unit)), "")
    try:
        size = int(float(text[: len(text) - len(unit)]) * units.get(unit, 1))
    except (ValueError, OverflowError):
        raise ValueError(f"expected a size such as 512MB, got {text!r}") from None
    if size < 1:
        raise ValueError(f"must be positive, got {text!r}")
    return size


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ExamplesOptions):
    """Options of `headjax ablate`."""

    mode: tuple[str, ...] = option(("each",), "each, all-but-one, or each,all-but-one", "MODES")
    budget: int = option(10**9, "memory that temporaries may take", "SIZE", read=size_in_bytes, shown="1GB")
    resamples: Size = option(1000, "resamples of the bootstrap")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found(OnExamples):
    """Effects of ablations.

    Attributes:
        effects_by_mode: the effects and their tests.
    """

    metric: str = found("the headline metric, of the first mode as are the keys up to `test`")
    baseline: Mapping[str, float] = found("metrics with all heads")
    effect: Mapping[str, float] = found("change of the headline by head")
    effects: Mapping[str, Any] = found("change of every metric, by name and head")
    p_value: Mapping[str, float] = found("by head")
    test: str = found("the paired test")
    modes: Mapping[str, Any] = found("the same by mode")
    effects_by_mode: Mapping[str, HeadEffects]

    def tables(self) -> Sequence[Table]:
        return [_table(effects, mode, self.about) for mode, effects in self.effects_by_mode.items()]


def run(options: Options, progress: Progress) -> Found:
    """The effect of removing each head, and of keeping only one of its layer, with paired tests."""
    modes = options.mode
    for mode in modes:
        if mode not in MODES:
            raise HeadjaxError(f"--mode: {unknown_name('mode', mode, MODES)}")
    model, examples = open_model_and_examples(options)
    task = examples.evaluation
    model = task.fit(model)
    measured = {mode: _effects(model, task, mode, options, progress) for mode in modes}
    by_mode = {mode: _to_json(effects) for mode, effects in measured.items()}
    described = examples.described(selection=False)
    return Found(**by_mode[modes[0]], modes=by_mode, effects_by_mode=measured, **described)


def _effects(model: Model, task: Task, mode: Any, options: Options, progress: Progress) -> HeadEffects:
    from headjax.evaluation.paired import head_effects
    from headjax.heads.ablation import ablate
    from headjax.heads.head_id import all_heads

    heads = len(all_heads(model.config))
    chosen: Any = {"limit": options.limit, "buckets": options.buckets}
    batches = task.batches(options.batch_size, **chosen)
    with progress(f"ablating {heads} heads, {mode}", task.count_batches(options.batch_size, **chosen), "batch") as bar:
        ablation = ablate(model, batches, mode, metrics=task.measure.outcomes(), budget=options.budget, progress=bar)
    with progress("testing", heads, "head") as bar:
        return head_effects(ablation, task.measure, resamples=options.resamples, progress=bar)


def _to_json(effects: HeadEffects) -> dict[str, Any]:
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
