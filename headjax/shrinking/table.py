"""The table of options: damages that were measured, costs that are counted, seconds that were timed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from headjax.core.errors import HeadjaxError
from headjax.heads.latency import time_forward
from headjax.heads.units import without_units
from headjax.hub.exporting import layout_of_export
from headjax.models.config import Batch, ModelConfig
from headjax.models.model import Model
from headjax.shrinking.choice import Option, Table
from headjax.shrinking.costs import costs_of
from headjax.shrinking.grid import WHOLE, Grid, Level
from headjax.shrinking.measure import Measured, key_of
from headjax.shrinking.places import Place, attentions_of, without
from headjax.storage.kept import Kept


def table_of(
    model: Model, grid: Grid, measured: Measured, damage: str, length: int, timed: Batch | None, kept: Kept
) -> Table:
    """Return the table of options.

    Args:
        model: the whole model.
        grid: the levels.
        measured: their damages.
        damage: what damages are.
        length: tokens of an example, for FLOPs.
        timed: inputs to time every level on; None times none.
        kept: where seconds are kept.
    """
    removed = _without(model, grid, measured)
    costs = {level: costs_of(config, length).by_place for level, config in removed.items()}
    costs |= {form.level: form.costs for form in measured.forms}
    rest = dict(costs_of(model.config, length).rest)
    seconds: Mapping[str, float] = {}
    if timed is not None:
        seconds = kept("seconds", lambda: _seconds(_configs(removed, measured), model, timed))
        rest["latency"] = seconds[str(WHOLE)]
    options = {place.name: _of_place(place, measured, grid, costs, seconds) for place in measured.places}
    return Table(options, rest, damage)


def native_levels(model: Model, grid: Grid, measured: Measured) -> set[str]:
    """Return the levels that keep a model in its family's native layout where all its layers take them.

    Raises:
        HeadjaxError: the model itself has no such layout.
    """
    configs = _configs(_without(model, grid, measured), measured)
    native = {name for name, config in configs.items() if _is_native(_drawn(config, model))}
    if str(WHOLE) not in native:
        raise HeadjaxError("native: the whole model has no native layout of its family; see headjax export")
    return native


def _is_native(model: Model) -> bool:
    try:
        return layout_of_export(model)[1] == "native"
    except HeadjaxError:
        return False


def _configs(removed: Mapping[Level, ModelConfig], measured: Measured) -> dict[str, ModelConfig]:
    """Return the architecture of every level by name."""
    configs = {str(level): config for level, config in removed.items()}
    return configs | {str(form.level): form.config() for form in measured.forms if form.targets}


def _drawn(config: ModelConfig, model: Model) -> Model:
    """Return a model of random weights."""
    return model.replace(config=config, params=config.initialize(jax.random.key(0)))


def _seconds(configs: Mapping[str, ModelConfig], model: Model, batch: Batch) -> dict[str, float]:
    """Return the median seconds of a forward by level; the models take turns."""
    drawn = {name: _drawn(config, model) for name, config in configs.items()}
    return {name: timing.median for name, timing in time_forward(drawn, batch).items()}


def _without(model: Model, grid: Grid, measured: Measured) -> dict[Level, ModelConfig]:
    """Return the architecture of the whole, and of every level without a conversion, all layers alike."""
    heads = attentions_of(measured.places)
    configs = {WHOLE: model.config}
    for level in grid.removals():
        kept = {place.name: place.left(measured.orders[place.name], level) for place in heads}
        configs[level] = without(model, kept, heads).config
    for level in grid.of_units():
        configs[level] = without_units(model.config, 1.0 - level.units)
    return configs


def _of_place(
    place: Place,
    measured: Measured,
    grid: Grid,
    costs: Mapping[Level, Mapping[str, Mapping[str, float]]],
    seconds: Mapping[str, float],
) -> tuple[Option, ...]:
    """Return the options of a sub-layer, the whole first."""
    targets = {form.level: form.targets[place.name] for form in measured.forms if place.name in form.targets}
    found = []
    for level in (WHOLE, *place.removals(grid), *targets):
        alike = sum(key_of(other, level) in measured.damages for other in measured.places)
        saved = 0.0 if level == WHOLE else seconds.get(str(WHOLE), 0.0) - seconds.get(str(level), 0.0)
        whole = level == WHOLE
        fields: dict[str, Any] = {
            "place": place.name,
            "level": "" if whole else str(level),
            "damage": 0.0 if whole else measured.damages[key_of(place, level)],
            "latency": -saved / alike if saved else 0.0,
            **costs[level][place.name],
        }
        if place.attention is None:
            found.append(Option(**fields, kind="whole" if whole else "units", units=place.count(level)))
            continue
        left = place.left(measured.orders.get(place.name, ()), level)
        fewer = len(left) < place.attention.num_heads
        kind = "whole" if whole else "heads" if not level.to else "both" if fewer else "sharing"
        to = targets[level] if level.to else ""
        ids = tuple(place.attention.ids[position] for position in left)
        found.append(Option(**fields, kind=kind, heads=ids, to=to))
    return tuple(found)
