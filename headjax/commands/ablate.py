"""`headjax ablate`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from headjax.commands.examples import ExamplesOptions, open_model_and_examples
from headjax.commands.options import Result, option
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
SHOWN = 5
"""Heads printed at either end."""


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


def run(options: Options, progress: Progress) -> Result:
    """The effect of removing each head, and of keeping only one of its layer, with paired tests."""
    modes = options.mode
    for mode in modes:
        if mode not in MODES:
            raise HeadjaxError(f"--mode: {unknown_name('mode', mode, MODES)}")
    model, examples = open_model_and_examples(options)
    task = examples.evaluation
    model = task.fit(model)
    described = examples.described(selection=False)
    found = {mode: _effects(model, task, mode, options, progress) for mode in modes}
    by_mode = {mode: _to_json(effects) for mode, effects in found.items()}
    tables = [_table(effects, mode, described.notes) for mode, effects in found.items()]
    return Result({**by_mode[modes[0]], "modes": by_mode, **described.data}, tables)


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


def _to_json(found: HeadEffects) -> dict[str, Any]:
    return {
        "metric": found.metric,
        "baseline": found.baseline,
        "effect": {str(head): value for head, value in found.effects().items()},
        "effects": {name: {str(h): v for h, v in found.effects(name).items()} for name in found.baseline},
        "p_value": {str(head): comparison.p_value for head, comparison in found.comparisons.items()},
        "test": found.test,
    }


def _table(found: HeadEffects, mode: str, notes: tuple[str, ...]) -> Table:
    effects = found.effects()
    title = "without the head" if mode == "each" else "with only this head in its layer"
    heads = sorted(effects, key=lambda head: effects[head])
    picked = heads if len(heads) <= 2 * SHOWN else [*heads[:SHOWN], *heads[-SHOWN:]]
    columns = (
        Column("Head"),
        Column(f"Change of {found.metric} {title}", numbers.significant),
        Column("p", numbers.significant),
    )
    rows = [(str(head), effects[head], found.comparisons[head].p_value) for head in picked]
    note = f"Extremes of {len(heads)} heads; {found.metric} with all: {found.baseline[found.metric]:.4g}. {found.test}."
    return Table(columns, rows, notes=(note, *notes))
