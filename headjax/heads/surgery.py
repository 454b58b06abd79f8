"""Read and change the sub-layers of a model: each is a module with its own arrays, and another takes its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.core.errors import HeadjaxError
from headjax.core.kind import fresh, own_copy
from headjax.core.modules import arrays, bind, declared
from headjax.core.tensors import Params, abstract, map_tensors
from headjax.heads.head_id import require_stack
from headjax.heads.refit import Change
from headjax.mesh.distributed import fetch
from headjax.mesh.mesh import take
from headjax.models.config import HEAD_STACKS, ModelConfig
from headjax.models.model import Model
from headjax.models.walk import FEED_FORWARD
from headjax.nn.block import Block
from headjax.nn.projections import FeedForward
from headjax.nn.stack import StackConfig


class LayerModule(NamedTuple):
    """Attention or feed-forward of a layer; layers that share their parameters have one, as the first of them.

    Attributes:
        stack: Head stack (encoder, decoder, cross) of an attention, stack of a feed-forward.
        layer: Number of the layer, counted from 0.
        module: `nnx.Module` with the layer's own arrays, without an axis of layers.
    """

    stack: str
    layer: int
    module: Any

    @property
    def config(self) -> Any:
        """Formulation of an attention."""
        return self.module.kind

    @property
    def params(self) -> Params:
        """The arrays as a nested dict."""
        return arrays(self.module)

    def holding(self, params: Params) -> nnx.Module:
        """Return a module of the same kind that holds these arrays."""
        module: nnx.Module = bind(own_copy(self.module), params)
        return module


def regroups(model: nnx.Module) -> bool:
    """Return whether a model has a config by layer (`with_layers`), so that its layers may differ in any way."""
    return hasattr(getattr(model, "config", None), "with_layers")


def attention_layers(model: Model) -> Iterator[LayerModule]:
    """Yield the attention layers, head stack after head stack."""
    for head_stack in model.config.attentions():
        stack, slot = HEAD_STACKS[head_stack]
        yield from _modules(model, head_stack, stack, slot, _unstacked(model, stack, slot))


def map_attention(
    model: Model,
    change: Callable[[LayerModule], nnx.Module],
    stacks: Collection[str] | None = None,
    layers: Collection[int] | None = None,
) -> Model:
    """Return the model with every chosen attention layer replaced by the module that `change` returns for it.

    Everything else about the model (other parameters, history, tokenizer) stays as it is. Layers are regrouped into
    runs, so that any mixture of formulations and head counts is an ordinary model. Arrays that a layer keeps are shared
    with the model as far as the groups of its layers stay. Layers that share their parameters change together: `change`
    is called for the first of them, and all take its result.

        >>> model = headjax.demo_model()
        >>> smaller = headjax.map_attention(model, lambda layer: layer.module.keep_heads([0, 1, 2]), layers=[0])
        >>> len(headjax.all_heads(smaller.config))
        27

    Args:
        model: Model to change.
        change: Called once per chosen layer, in order; returns the layer's own module where nothing changes.
        stacks: Head stacks (`encoder`, `decoder`, `cross`) to change; None changes all of the model.
        layers: Layers to change, counted from 0; None changes all.

    Raises:
        HeadjaxError: The model has no such head stack.
    """
    for head_stack in stacks or ():
        require_stack(model.config, head_stack)
    chosen = [name for name in model.config.attentions() if stacks is None or name in stacks]
    return _mapped(model, change, {name: HEAD_STACKS[name] for name in chosen}, layers)


def map_feed_forward(model: Model, change: Callable[[LayerModule], nnx.Module]) -> Model:
    """Return the model with every feed-forward sub-layer replaced by the module that `change` returns."""
    return _mapped(model, change, {name: (name, FEED_FORWARD) for name in model.config.stacks()})


def remove_layers(model: Model, removed: Collection[tuple[str, int]]) -> Model:
    """Return the model without whole layers, by stack and number; those behind them are numbered anew.

    The stream passes by a removed layer, whose sub-layers, norms and biases are gone. The removal is added to the
    history, in the old numbers.
    """
    if not removed:
        return model
    before, params = model.config.stacks(), dict(model.params)
    names = dict.fromkeys(name for name, _ in removed)
    layers_kept = {name: [i for i in range(len(before[name].layers)) if (name, i) not in removed] for name in names}
    after = model.config.with_layers({name: [before[name].layers[i] for i in layers_kept[name]] for name in names})
    for name, kept in layers_kept.items():
        layers = before[name].unstack(params[name])
        params[name] = after.stacks()[name].restack([layers[i] for i in kept], params[name])
    texts = [f"{stack}/{layer}" for stack, layer in sorted(removed)]
    return model.replace(config=after, params=params).with_entry("remove_layers", removed=texts)


def config_after(config: ModelConfig, surgery: Callable[[Model], Model]) -> ModelConfig:
    """Return the architecture that a surgery makes of another one. Nothing is computed: arrays are shapes."""
    return jax.eval_shape(surgery, Model(config, abstract(config.tensors()))).config


class MapVariables(NamedTuple):
    """The linear map that a sub-layer ends with."""

    weight: Any  # W_O [heads, value_dim, width] or W_2 [hidden, width]; None where a formulation has no such weight
    bias: Any  # b_O or b_2 [width], or None


def output_map(module: Any) -> MapVariables:
    """Return the last map of an attention or a feed-forward; setting its variables changes the module."""
    if isinstance(module, FeedForward):
        return MapVariables(module.down, module.down_bias)
    return MapVariables(module.output.kernel, module.output.bias)


def with_change(layer: Block, slot: str, change: Change) -> Block:
    """Return a layer with another output map in a slot."""
    copy: Block = own_copy(layer)
    for variable, array in zip(output_map(getattr(copy, slot)), change, strict=True):
        if variable is not None:
            array_before = variable.get_raw_value()
            total = np.asarray(fetch(array_before), np.float64) + array.reshape(array_before.shape)
            variable.set_raw_value(on_devices_of(array_before, jax.device_put(total.astype(array_before.dtype))))
    return copy


def on_devices_of(other: jax.Array, array: jax.Array) -> jax.Array:
    """Return an array on the devices of another one."""
    if isinstance(other, jax.Array) and len(other.sharding.device_set) > 1:
        return jax.device_put(array, other.sharding)
    return array if len(array.sharding.device_set) == 1 else jnp.asarray(fetch(array))


def _mapped(
    model: Model,
    change: Callable[[LayerModule], nnx.Module],
    places: Mapping[str, tuple[str, str]],
    layers: Collection[int] | None = None,
) -> Model:
    """Return the model with other modules in these places."""
    config, params = model.config, dict(model.params)
    chosen = None if layers is None else frozenset(layers)
    edited = {name: list(config.stacks()[name].layers) for name, _ in places.values()}
    weights: dict[str, dict[str, list[Params]]] = {name: {} for name in edited}
    changed: dict[str, set[tuple[int, str]]] = {name: set() for name in edited}
    for called, (name, slot) in places.items():
        slot_weights = weights[name][slot] = _unstacked(model, name, slot)
        for layer_module in _modules(model, called, name, slot, list(slot_weights)):
            tied = config.stacks()[name].tied_layers(layer_module.layer)
            if chosen is not None and chosen.isdisjoint(tied):
                continue
            module: Any = change(layer_module)
            if module is not layer_module.module:
                field = {"hidden": module.hidden} if slot == FEED_FORWARD else {slot: module.kind}
                for layer in tied:
                    slot_weights[layer] = arrays(module)
                    edited[name][layer] = dataclasses.replace(edited[name][layer], **field)
                    changed[name].add((layer, slot))
    after = config.with_layers(edited)
    for name in edited:
        stacks = config.stacks()[name], after.stacks()[name]
        params[name] = _restacked(*stacks, params[name], weights[name], changed[name])
    return model.replace(config=after, params=params)


def _unstacked(model: Model, name: str, slot: str) -> list[Params]:
    params = model.params[name]
    groups = model.config.stacks()[name].groups
    return [layer for group in groups for layer in group.unstacked(params[group.name][slot])]


def _modules(model: Model, called: str, name: str, slot: str, weights: Iterable[Params]) -> Iterator[LayerModule]:
    """Yield the sub-layers in a slot of a stack as modules of these weights."""
    stack = model.config.stacks()[name]
    for number, (layer, params) in enumerate(zip(stack.layers, weights, strict=True)):
        if number == stack.tied_layers(number)[0]:
            yield LayerModule(called, number, bind(getattr(fresh(Block, layer), slot), params))


def _restacked(
    old: StackConfig, new: StackConfig, params: Params, weights: dict[str, list[Params]], changed: set[tuple[int, str]]
) -> Params:
    """Return the parameters of a changed stack; a group of the same layers as before shares unchanged arrays."""
    before = {group.name for group in old.groups}
    restacked = {key: entry for key, entry in params.items() if key not in before}
    if any(group.name not in before for group in new.groups):
        others = {key: {slot: each for slot, each in params[key].items() if slot not in weights} for key in before}
        by_layer = old.unstack(others)
        weights |= {slot: [layer[slot] for layer in by_layer] for slot in by_layer[0]}
    for group in new.groups:
        kept = params.get(group.name, {})  # none of a new group
        layers = range(group.start, group.stop)
        slots = [slot for slot in weights if not kept or any((layer, slot) in changed for layer in layers)]
        stacked = {slot: group.restack(weights[slot][group.start : group.stop]) for slot in slots}
        restacked[group.name] = kept | stacked
    return restacked


StackLayer = tuple[str, int]
"""A stack (`encoder`, `decoder`) and a layer in it."""

AXIS = "feed_forward"
"""Logical axis of a feed-forward's units."""


def count_units(model: Model) -> dict[StackLayer, int]:
    """Return the number of units of every feed-forward; layers that share their parameters have one, the first's."""
    return {
        (name, i): layer.hidden
        for name, stack in model.config.stacks().items()
        for i, layer in enumerate(stack.layers)
        if i == stack.tied_layers(i)[0]
    }


def units_to_remove(hidden: int, share: float) -> int:
    """Return the number of units nearest to a share of all; at least one unit stays."""
    return min(round(share * hidden), hidden - 1)


def prune_units(model: Model, removed: Mapping[StackLayer, Collection[int]]) -> Model:
    """Return the model without some units of its feed-forward sub-layers.

    Their columns of W_1 (and of the gate), their biases and their rows of W_2 are removed, so that the result equals
    the model with their activations at 0. The numbers of removed units are added to the history.
    """
    counts = count_units(model)
    for place, units in removed.items():
        name = f"{place[0]}/{place[1]}"
        if place not in counts:
            raise HeadjaxError(f"units: there is no feed-forward {name} with parameters of its own")
        unknown = [unit for unit in units if not 0 <= unit < counts[place]]
        if unknown:
            raise HeadjaxError(f"units: {name} has no unit {unknown[0]}; it has {counts[place]}, counted from 0")
        if len(set(units)) == counts[place]:
            raise HeadjaxError(f"units: {name} has {counts[place]} units and must keep one")
    units_of = {place: sorted(set(units)) for place, units in removed.items() if units}
    if not units_of:
        return model

    def keep(layer: LayerModule) -> FeedForward:
        module: FeedForward = layer.module
        units = units_of.get((layer.stack, layer.layer))
        return module if units is None else resized(module, np.setdiff1d(np.arange(module.hidden), units))

    pruned = map_feed_forward(model, keep)
    numbers = {f"{stack}/{layer}": len(units) for (stack, layer), units in units_of.items()}
    return pruned.with_entry("prune_units", removed=numbers)


def pad_units(model: Model) -> Model:
    """Return a model of the same function in which the sub-layers of a stack have as many units as the largest.

    Missing units have zero weights, so that they add nothing.
    """
    counts = count_units(model)
    most = {name: max(number for place, number in counts.items() if place[0] == name) for name, _ in counts}

    def fill(layer: LayerModule) -> FeedForward:
        present = np.arange(layer.module.hidden)
        return resized(layer.module, np.append(present, np.full(most[layer.stack] - len(present), -1)))

    even = all(count == most[stack] for (stack, _), count in counts.items())
    return model if even else map_feed_forward(model, fill)


def resized(module: FeedForward, units: np.ndarray) -> FeedForward:
    """Return a sub-layer with the units of these numbers alone, in this order; -1 is a unit of zeros."""
    index, present = np.maximum(units, 0), units >= 0

    def cut(path: str, weight: nnx.Param[Any]) -> Any:
        array, axes = weight.get_raw_value(), weight.out_sharding
        if AXIS not in axes:
            return array
        axis = axes.index(AXIS)
        array = take(array, index, axis, AXIS)
        if present.all():
            return array
        shape = [1] * len(axes)
        shape[axis] = len(units)
        return jnp.where(present.reshape(shape), array, jnp.zeros((), array.dtype))

    return cast(FeedForward, bind(own_copy(module), map_tensors(cut, declared(module))))
