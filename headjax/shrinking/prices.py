"""The prices of a model's options: damages that were measured, costs that are counted, seconds that were timed.

A difference of two times is negative as soon as their noise is greater than it. Here no times are subtracted:

    seconds of an option = whole * share of its sub-layer * ratio of the option to the whole sub-layer

The shares are those of the sub-layers and of everything else, each timed alone, in their sum. So the seconds of the
unchanged model are those that it was measured with. The two calls of a ratio follow each other, so that they see the
same load, and the median of such pairs counts.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from headjax.core.errors import HeadjaxError
from headjax.core.modules import declared
from headjax.core.progress import Progress, silent
from headjax.core.tensors import Params, count, initialize
from headjax.core.timing import seconds_in_turns
from headjax.hub.exporting import layout_of_export
from headjax.models.config import Batch, ModelConfig
from headjax.models.inputs import device_batch
from headjax.models.model import Model
from headjax.models.summary import summarize, summarize_layers
from headjax.models.walk import FEED_FORWARD
from headjax.nn.block import ForwardOptions, ResidualStep
from headjax.shrinking.choice import NO_LAYER, QUANTITIES, Option, Prices
from headjax.shrinking.measure import Candidate, Candidates
from headjax.shrinking.search_space import NO_LAYER_SIZE, WHOLE, SubLayer, sub_layers_of
from headjax.storage.files import Kept

REPEATS = 9
"""Timed calls of each part; medians count."""


def prices_of(
    model: Model,
    candidates: Candidates,
    damage: str,
    length: int,
    kept: Kept,
    clock: Clock | None = None,
    progress: Progress = silent,
) -> Prices:
    """Return the prices of candidates: costs for examples of `length` tokens, and seconds where there is a clock."""
    sub_layers, configs = sub_layers_of(model), _configs(model, candidates)
    costs = {level: _costs(config, length) for level, config in configs.items()}
    costs[str(NO_LAYER_SIZE)] = {sub_layer.name: {} for sub_layer in sub_layers}
    whole, latency, rest = _costs(model.config, length), None, dict.fromkeys(QUANTITIES, 0.0)
    rest["flops"] = summarize(model.config, length).flops - sum(costs["flops"] for costs in whole.values())
    if clock is not None:
        levels = {
            name: {str(each.size): configs[str(each.size)] for each in of_sub_layer if each.size != NO_LAYER_SIZE}
            for name, of_sub_layer in candidates.items()
        }
        timed = kept("latency", lambda: measure_latency(model.config, sub_layers, levels, clock, progress)._asdict())
        latency = Latency(**timed)
        rest["latency"] = latency.rest
    options = {}
    for sub_layer in sub_layers:
        name, original = sub_layer.name, Candidate(WHOLE, 0.0, sub_layer.attention)
        options[name] = (
            _option(sub_layer, original, "", whole[name], latency),
            *(_option(sub_layer, e, str(e.size), costs[str(e.size)][name], latency) for e in candidates[name]),
        )
    return Prices(options, rest, damage, 0.0 if latency is None else latency.parts)


def _option(
    sub_layer: SubLayer, candidate: Candidate, level: str, costs: Mapping[str, float], latency: Latency | None
) -> Option:
    name, attention = sub_layer.name, sub_layer.attention
    fields: dict[str, Any] = {"damage": candidate.damage, "to": candidate.to, **costs}
    option = Option(name, level, **fields)
    if candidate.size == NO_LAYER_SIZE:
        return option._replace(kind=NO_LAYER, **({"units": 0} if attention is None else {"heads": ()}))
    if latency is not None:
        option = option._replace(latency=latency.places[name] * (latency.ratios[name][level] if level else 1.0))
    if candidate.attention is None or attention is None:
        return option._replace(kind="units" if level else "whole", units=sub_layer.count(candidate.size))
    ids = tuple(head for head in attention.ids if head in candidate.attention.ids)
    fewer = len(ids) < attention.num_heads
    kind = "whole" if not level else "heads" if not candidate.to else "both" if fewer else "sharing"
    return option._replace(kind=kind, heads=ids)


def _costs(config: ModelConfig, length: int) -> dict[str, dict[str, float]]:
    """Return what each sub-layer costs for examples of this length, by its name and quantity."""
    tokens = config.example_length(length)
    by_name = {
        f"{layer.stack}/{layer.layer}": {
            "parameters": float(layer.parameters),
            "flops": float(layer.flops),
            "cache": float(layer.cache_bytes_per_token * (layer.stack == "decoder")),
        }
        for layer in summarize_layers(config, tokens)
    }
    for stack, layers in config.stacks().items():
        for number, layer in enumerate(layers.layers):
            by_name[f"{stack}/{number}/{FEED_FORWARD}"] = {
                "parameters": float(count(declared(layer.make_feed_forward()))),
                "flops": float(layer.feed_forward_flops(tokens)),
                "cache": 0.0,
            }
    return by_name


def _configs(model: Model, candidates: Candidates) -> dict[str, ModelConfig]:
    """Return the architecture of every size, in which all sub-layers that can have it do."""
    layers: dict[str, dict[str, list[Any]]] = {}
    for sub_layer in sub_layers_of(model):
        for candidate in candidates[sub_layer.name]:
            if candidate.size == NO_LAYER_SIZE:
                continue
            original = {name: list(stack.layers) for name, stack in model.config.stacks().items()}
            of_stack = layers.setdefault(str(candidate.size), original)[sub_layer.stack]
            attention = candidate.attention
            fields = {sub_layer.slot: attention} if attention else {"hidden": sub_layer.count(candidate.size)}
            of_stack[sub_layer.layer] = dataclasses.replace(of_stack[sub_layer.layer], **fields)
    return {level: model.config.with_layers(of_size) for level, of_size in layers.items()}


def native_levels(model: Model, candidates: Candidates) -> set[str]:
    """Return the sizes that keep a model in its family's native layout where all its layers take them."""
    if not _is_native(model.config, model):
        raise HeadjaxError("native: the original model has no native layout of its family; see headjax export")
    levels = {level for level, config in _configs(model, candidates).items() if _is_native(config, model)}
    with_one_layer_less = {
        model.config.with_layers({name: stack.layers[:number] + stack.layers[number + 1 :]})
        for name, stack in model.config.stacks().items()
        for number in range(len(stack.layers) if len(stack.layers) > 1 else 0)
    }
    fewer_layers = all(_is_native(config, model) for config in with_one_layer_less)
    return levels | ({str(NO_LAYER_SIZE)} if fewer_layers else set())


def _is_native(config: ModelConfig, model: Model) -> bool:
    drawn = model.replace(config=config, params=config.initialize(jax.random.key(0)))
    try:
        return layout_of_export(drawn)[1] == "native"
    except HeadjaxError:
        return False


class Part(NamedTuple):
    """A part of a forward pass: a slot of the layers of a stack, `model` or `rest`."""

    config: ModelConfig
    slot: str
    stack: str = ""


Clock = Callable[[Mapping[str, Part]], Mapping[str, Sequence[float]]]
"""Function from parts by name to the seconds of each in every turn; within a turn their calls follow each other."""


class Latency(NamedTuple):
    """Seconds of a forward pass, by sub-layer; `ratios` of their smaller sizes."""

    whole: float
    parts: float
    rest: float
    places: Mapping[str, float]
    ratios: Mapping[str, Mapping[str, float]]


def measure_latency(
    config: ModelConfig,
    sub_layers: Sequence[SubLayer],
    levels: Mapping[str, Mapping[str, ModelConfig]],
    clock: Clock,
    progress: Progress = silent,
) -> Latency:
    """Time every sub-layer at every size: `levels` are the architectures by sub-layer and size."""
    wholes = {each.name: alone(config, each) for each in sub_layers}
    pairs = {
        each.name: {level: (wholes[each.name], alone(smaller, each)) for level, smaller in levels[each.name].items()}
        for each in sub_layers
    }
    ratios = dict.fromkeys((pair for of_sub_layer in pairs.values() for pair in of_sub_layer.values()), 0.0)
    with progress("timing options", len(ratios), "option") as bar:
        for done, (whole, smaller) in enumerate(ratios, start=1):
            turns = clock({"whole": whole, "smaller": smaller})
            ratios[whole, smaller] = _median_ratio(turns["smaller"], turns["whole"])
            bar(done, {})
    by_size = {
        name: {level: ratios[pair] for level, pair in of_sub_layer.items()} for name, of_sub_layer in pairs.items()
    }
    return _shared_out(config, wholes, clock)._replace(ratios=by_size)


def _shared_out(config: ModelConfig, wholes: Mapping[str, Part], clock: Clock) -> Latency:
    """Return the seconds of the original model, shared out among its sub-layers and the rest; no option is timed."""
    names = {part: f"part {number}" for number, part in enumerate(dict.fromkeys(wholes.values()))}
    parts = {name: part for part, name in names.items()}
    turns = clock({"model": Part(config, "model"), "rest": Part(config, "rest")} | parts)
    by_name = {
        name: [second / len(part.config.stacks()[part.stack].layers) for second in turns[names[part]]]
        for name, part in wholes.items()
    }
    sums = [sum(turn) for turn in zip(turns["rest"], *by_name.values(), strict=True)]
    whole, rest = statistics.median(turns["model"]), statistics.median(turns["rest"])
    medians = {name: statistics.median(times) for name, times in by_name.items()}
    scale = whole / (rest + sum(medians.values()))
    places = {name: scale * median for name, median in medians.items()}
    return Latency(whole, whole * _median_ratio(sums, turns["model"]), scale * rest, places, {})


def _median_ratio(seconds: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(second / other for second, other in zip(seconds, others, strict=True))


def alone(config: ModelConfig, sub_layer: SubLayer) -> Part:
    """Return the part of a sub-layer: its stack, with as many copies of this sub-layer alone as there are layers.

    One call of a program has fixed costs, which weigh less on a whole stack than on one layer. Sub-layers of equal
    structure are equal parts.
    """
    stack, number, slot, *_ = sub_layer
    layers, field = config.stacks()[stack].layers, "hidden" if slot == FEED_FORWARD else slot
    one = dataclasses.replace(layers[0], **{field: getattr(layers[number], field)}).structure()
    one = dataclasses.replace(one, window=layers[number].window)
    return Part(config.with_layers({stack: (one,) * len(layers)}), slot, stack)


def time_parts(model: Model, batch: Batch, parts: Mapping[str, Part]) -> Mapping[str, Sequence[float]]:
    """Return the seconds of every part's calls on this machine; the parts take turns."""
    arrays, calls = device_batch(model.config, batch), {}
    for name, part in parts.items():
        # The part's stack is drawn in its new shapes.
        tensors = {part.stack: part.config.tensors()[part.stack]} if part.stack else {}
        params = model.params | initialize(tensors, jax.random.key(0), part.config.initializer)
        calls[name] = functools.partial(_computed, part, params, arrays)
    return seconds_in_turns(calls, repeats=REPEATS, warmup=2)


@functools.partial(jax.jit, static_argnames="part")
def _computed(part: Part, params: Params, batch: Any) -> Any:
    """Return the results of a part; the compiler drops unused parts."""
    model: Any = Model(part.config, params)
    if part.slot == "model":
        return model.forward(batch)

    def join(joining: ResidualStep) -> jax.Array:
        residual = joining.residual
        here = joining.slot == part.slot
        return residual.join(joining.x, joining.f(residual.enter(joining.read))) if here else joining.x

    options, state = ForwardOptions(join=join), model.embed(batch)  # other stacks hand on what enters them
    names = list(part.config.stacks())
    if part.stack != names[0]:
        state = model.enter_decoder(state) if len(names) > 1 else state
    return getattr(model, part.stack)(state, options)[0].x if part.stack else model.finish(state)
