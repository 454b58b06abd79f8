"""The table of options: damages that were measured, costs that are counted, seconds that were timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from headjax.core.errors import HeadjaxError
from headjax.core.modules import declared
from headjax.core.progress import Progress, silent
from headjax.core.tensors import count
from headjax.hub.exporting import layout_of_export
from headjax.models.config import ModelConfig
from headjax.models.model import Model
from headjax.models.summary import summarize
from headjax.models.walk import FEED_FORWARD
from headjax.shrinking.choice import NO_LAYER, Option, Table
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
    costs = {level: _costs(config, length)[0] for level, config in configs.items()}
    costs[str(NONE)] = {place.name: {} for place in places}
    (whole, rest), latency = _costs(model.config, length), None
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
        original = _option(place, Form(WHOLE, 0.0, place.attention), "", whole[place.name], latency)
        named = [(str(form.level), form) for form in measured[place.name]]
        others = (_option(place, form, level, costs[level][place.name], latency) for level, form in named)
        options[place.name] = (original, *others)
    return Table(options, rest, damage, 0.0 if latency is None else latency.parts)


def _costs(config: ModelConfig, length: int) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Return what each sub-layer costs for examples of this length, by place and quantity, and all else together."""
    summary = summarize(config, length)
    by_place = {
        f"{layer.stack}/{layer.layer}": {
            "parameters": float(layer.parameters),
            "flops": float(layer.flops),
            "cache": float(layer.cache_bytes_per_token * (layer.stack == "decoder")),
        }
        for layer in summary.layers
    }
    for stack, own in config.stacks().items():
        tokens = config.attention_lengths(stack, length)[0]
        for number, layer in enumerate(own.layers):
            by_place[f"{stack}/{number}/{FEED_FORWARD}"] = {
                "parameters": float(count(declared(layer.make_feed_forward()))),
                "flops": float(layer.feed_forward_flops(tokens)),
                "cache": 0.0,
            }
    flops = float(summary.flops) - sum(one["flops"] for one in by_place.values())
    return by_place, {"parameters": 0.0, "flops": flops, "cache": 0.0, "latency": 0.0}


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
