"""The table of options: damages that were measured, costs that are counted, seconds that were timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from headjax.core.errors import HeadjaxError
from headjax.core.progress import Progress, silent
from headjax.hub.exporting import layout_of_export
from headjax.models.config import ModelConfig
from headjax.models.model import Model
from headjax.shrinking.choice import NO_LAYER, Option, Table
from headjax.shrinking.costs import costs_of
from headjax.shrinking.grid import NONE, WHOLE
from headjax.shrinking.latency import Clock, Latency, measure_latency
from headjax.shrinking.measure import Form, Measured
from headjax.shrinking.places import Place, places_of
from headjax.storage.kept import Kept


def table_of(
    model: Model,
    measured: Measured,
    damage: str,
    length: int,
    kept: Kept,
    clock: Clock | None = None,
    progress: Progress = silent,
) -> Table:
    """Return the table of options."""
    places, configs = places_of(model), _configs(model, measured)
    costs = {level: costs_of(config, length).by_place for level, config in configs.items()}
    costs[str(NONE)] = {place.name: {} for place in places}
    whole = costs_of(model.config, length)
    rest, latency = dict(whole.rest), None
    if clock is not None:
        levels = {
            name: {str(form.level): configs[str(form.level)] for form in own if form.level != NONE}
            for name, own in measured.items()
        }
        told = kept("latency", lambda: measure_latency(model.config, places, levels, clock, progress)._asdict())
        latency = Latency(**told)
        rest["latency"] = latency.rest
    options: dict[str, tuple[Option, ...]] = {}
    for place in places:
        original = _option(place, Form(WHOLE, 0.0, place.attention), "", whole.by_place[place.name], latency)
        named = [(str(form.level), form) for form in measured[place.name]]
        others = (_option(place, form, level, costs[level][place.name], latency) for level, form in named)
        options[place.name] = (original, *others)
    return Table(options, rest, damage, 0.0 if latency is None else latency.parts)


def _option(place: Place, form: Form, level: str, costs: Mapping[str, float], latency: Latency | None) -> Option:
    """Return the option of a form; no layer costs nothing."""
    fields: dict[str, Any] = {"place": place.name, "level": level, "damage": form.damage, "to": form.to, **costs}
    if form.level == NONE:
        left: dict[str, Any] = {"units": 0} if place.attention is None else {"heads": ()}
        return Option(**fields, **left, kind=NO_LAYER)
    fields["latency"] = 0.0 if latency is None else latency.of(place.name, level)
    if form.attention is None or place.attention is None:
        return Option(**fields, kind="units" if level else "whole", units=place.count(form.level))
    ids = tuple(head for head in place.attention.ids if head in form.attention.ids)
    fewer = len(ids) < place.attention.num_heads
    kind = "whole" if not level else "heads" if not form.to else "both" if fewer else "sharing"
    return Option(**fields, kind=kind, heads=ids)


def _configs(model: Model, measured: Measured) -> dict[str, ModelConfig]:
    """Return the architecture of every level, in which all sub-layers that can have it do."""
    layers: dict[str, dict[str, list[Any]]] = {}
    for place in places_of(model):
        for form in measured[place.name]:
            if form.level == NONE:
                continue
            of_level = layers.setdefault(
                str(form.level), {name: list(stack.layers) for name, stack in model.config.stacks().items()}
            )
            changed = {place.at.slot: form.attention} if form.attention else {"hidden": place.count(form.level)}
            own = of_level[place.at.stack]
            own[place.layer] = dataclasses.replace(own[place.layer], **changed)
    return {level: model.config.with_layers(of_level) for level, of_level in layers.items()}


def native_levels(model: Model, measured: Measured) -> set[str]:
    """Return the levels that keep a model in its family's native layout where all its layers take them."""
    if not _is_native(model.config, model):
        raise HeadjaxError("native: the original model has no native layout of its family; see headjax export")
    found = {level for level, config in _configs(model, measured).items() if _is_native(config, model)}
    return found | ({str(NONE)} if all(_is_native(config, model) for config in set(_shorter(model.config))) else set())


def _shorter(config: ModelConfig) -> Iterator[ModelConfig]:
    """Yield the architectures with one layer less."""
    for name, stack in config.stacks().items():
        for number in range(len(stack.layers) if len(stack.layers) > 1 else 0):
            yield config.with_layers({name: stack.layers[:number] + stack.layers[number + 1 :]})


def _is_native(config: ModelConfig, model: Model) -> bool:
    drawn = model.replace(config=config, params=config.initialize(jax.random.key(0)))
    try:
        return layout_of_export(drawn)[1] == "native"
    except HeadjaxError:
        return False
