"""The table of options: damages that were measured, costs that are counted, seconds that were timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from headjax.core.errors import HeadjaxError
from headjax.core.progress import Progress, silent
from headjax.heads.units import without_units
from headjax.hub.exporting import layout_of_export
from headjax.models.config import ModelConfig
from headjax.models.model import Model
from headjax.shrinking.choice import Option, Table
from headjax.shrinking.costs import costs_of
from headjax.shrinking.grid import WHOLE, Grid, Level
from headjax.shrinking.latency import Clock, Latency, measure_latency
from headjax.shrinking.measure import Measured, key_of
from headjax.shrinking.places import Place, attentions_of, without
from headjax.storage.kept import Kept


def table_of(
    model: Model,
    grid: Grid,
    measured: Measured,
    damage: str,
    length: int,
    kept: Kept,
    clock: Clock | None = None,
    progress: Progress = silent,
) -> Table:
    """Return the table of options."""
    removed = _without(model, grid, measured)
    costs = {level: costs_of(config, length).by_place for level, config in removed.items()}
    costs |= {form.level: form.costs for form in measured.forms}
    rest = dict(costs_of(model.config, length).rest)
    levels = {place.name: _levels(place, grid, measured) for place in measured.places}
    latency = None
    if clock is not None:
        latency = Latency(**kept("latency", lambda: _timed(model, removed, measured, levels, clock, progress)))
        rest["latency"] = latency.rest
    options = {place.name: _of_place(place, measured, levels[place.name], costs, latency) for place in measured.places}
    return Table(options, rest, damage, 0.0 if latency is None else latency.parts)


def _timed(
    model: Model,
    removed: Mapping[Level, ModelConfig],
    measured: Measured,
    levels: Mapping[str, Sequence[Level]],
    clock: Clock,
    progress: Progress,
) -> dict[str, Any]:
    """Return the `Latency` of all options as JSON data."""
    configs = _configs(removed, measured)
    by_place = {name: {str(level): configs[str(level)] for level in own} for name, own in levels.items()}
    return measure_latency(model.config, measured.places, by_place, clock, progress)._asdict()


def native_levels(model: Model, grid: Grid, measured: Measured) -> set[str]:
    """Return the levels that keep a model in its family's native layout where all its layers take them."""
    configs = _configs(_without(model, grid, measured), measured)
    native = {name for name, config in configs.items() if _is_native(_drawn(config, model))}
    if str(WHOLE) not in native:
        raise HeadjaxError("native: the original model has no native layout of its family; see headjax export")
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


def _levels(place: Place, grid: Grid, measured: Measured) -> list[Level]:
    """Return the levels of a sub-layer that have been measured, without the whole."""
    return [*place.removals(grid), *(form.level for form in measured.forms if place.name in form.targets)]


def _of_place(
    place: Place,
    measured: Measured,
    levels: Sequence[Level],
    costs: Mapping[Level, Mapping[str, Mapping[str, float]]],
    latency: Latency | None,
) -> tuple[Option, ...]:
    """Return the options of a sub-layer, the whole first."""
    targets = {form.level: form.targets[place.name] for form in measured.forms if place.name in form.targets}
    found = []
    for level in (WHOLE, *levels):
        whole = level == WHOLE
        name = "" if whole else str(level)
        fields: dict[str, Any] = {
            "place": place.name,
            "level": name,
            "damage": 0.0 if whole else measured.damages[key_of(place, level)],
            "latency": 0.0 if latency is None else latency.of(place.name, name),
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
