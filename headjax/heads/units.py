"""Feed-forward units: their numbers, their removal, and zeros in place of missing ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.core import history
from headjax.core.deferred import held
from headjax.core.errors import HeadjaxError
from headjax.core.tensors import Params, flatten
from headjax.models.config import ModelConfig
from headjax.models.model import Model
from headjax.models.sublayers import FeedForward

Place = tuple[str, int]
"""A stack (`encoder`, `decoder`) and a layer in it."""

AXIS = "feed_forward"
"""Logical axis of a feed-forward's units."""

SLOT = "feed_forward"
"""Slot of a layer's feed-forward, among its fields and its parameters."""


class FeedForwardLayer(NamedTuple):
    """Feed-forward sub-layer of a model.

    Attributes:
        place: stack and layer.
        feed_forward: the sub-layer.
        params: its parameters, without an axis of layers.
    """

    place: Place
    feed_forward: FeedForward
    params: Params


def feed_forward_layers(model: Model) -> Iterator[FeedForwardLayer]:
    """Yield the feed-forward sub-layers by stack and layer; layers that share their parameters once, as the first."""
    for name, stack in model.config.stacks().items():
        weights = stack.unstack(model.params[name])
        for i, layer in enumerate(stack.layers):
            if i == stack.tied_layers(i)[0]:
                yield FeedForwardLayer((name, i), layer.feed_forward, weights[i][SLOT])


def map_feed_forward(model: Model, function: Callable[[FeedForwardLayer], tuple[FeedForward, Params]]) -> Model:
    """Return the model with every feed-forward sub-layer replaced by the result of `function`.

    Layers that share their parameters change together: `function` is called for the first of them.
    """
    stacks, params = {}, dict(model.params)
    for name, stack in model.config.stacks().items():
        layers, weights = list(stack.layers), stack.unstack(model.params[name])
        for i in range(len(layers)):
            tied = stack.tied_layers(i)
            if i != tied[0]:
                continue
            new, own = function(FeedForwardLayer((name, i), layers[i].feed_forward, held(weights[i][SLOT])))
            for j in tied:
                layers[j] = dataclasses.replace(layers[j], feed_forward=new)
                weights[j] = weights[j] | {SLOT: own}
        stacks[name] = dataclasses.replace(stack, layers=tuple(layers))
        params[name] = stacks[name].restack(weights, model.params[name])
    return model.replace(config=model.config.replace_stacks(stacks), params=params)


def count_units(model: Model) -> dict[Place, int]:
    """Return the number of units of every feed-forward sub-layer."""
    return {found.place: found.feed_forward.hidden for found in feed_forward_layers(model)}


def without_units(config: ModelConfig, share: float) -> ModelConfig:
    """Return the config without a share of the units of every feed-forward, rounded as `reconstruct` does."""
    stacks = {}
    for name, stack in config.stacks().items():
        layers = []
        for layer in stack.layers:
            hidden = layer.feed_forward.hidden
            smaller = dataclasses.replace(layer.feed_forward, hidden=hidden - units_to_remove(hidden, share))
            layers.append(dataclasses.replace(layer, feed_forward=smaller))
        stacks[name] = dataclasses.replace(stack, layers=tuple(layers))
    return config.replace_stacks(stacks)


def units_to_remove(hidden: int, share: float) -> int:
    """Return the number of units nearest to a share of all; at least one unit stays."""
    return min(round(share * hidden), hidden - 1)


def prune_units(model: Model, removed: Mapping[Place, Collection[int]]) -> Model:
    """Return the model without some units of its feed-forward sub-layers.

    Their columns of W_1 (and of the gate), their biases and their rows of W_2 are removed, so that the result equals
    the model with their activations at 0. The numbers of removed units are added to the history.

    Args:
        model: model to prune.
        removed: units to remove, counted from 0, by stack and layer.

    Raises:
        HeadjaxError: a layer or a unit does not exist, or a layer would lose its last unit.
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
    gone = {place: sorted(set(units)) for place, units in removed.items() if units}
    if not gone:
        return model

    def keep(found: FeedForwardLayer) -> tuple[FeedForward, Params]:
        kept = np.setdiff1d(np.arange(found.feed_forward.hidden), gone.get(found.place, []))
        return resized(found.feed_forward, found.params, kept, model.config.width)

    pruned = map_feed_forward(model, keep)
    entry = history.entry("prune_units", removed={f"{stack}/{layer}": len(gone[stack, layer]) for stack, layer in gone})
    return pruned.replace(history=(*model.history, entry))


def mask_units(model: Model, removed: Mapping[Place, Collection[int]]) -> Model:
    """Return the model with the rows of W_2 of some units at 0: it computes as `prune_units` of them does."""

    def silence(found: FeedForwardLayer) -> tuple[FeedForward, Params]:
        return found.feed_forward, silenced(found.params, removed.get(found.place, ()))

    return map_feed_forward(model, silence) if any(removed.values()) else model


def silenced(params: Params, units: Collection[int]) -> Params:
    """Return the parameters of a feed-forward with the rows of W_2 of some units at 0."""
    return params | {"down": jnp.asarray(params["down"]).at[jnp.asarray(sorted(units), int)].set(0.0)}


def pad_units(model: Model) -> Model:
    """Return a model of the same function in which the sub-layers of a stack have as many units as the largest.

    Missing units have zero weights, so that they add nothing.
    """
    counts = count_units(model)
    most = {name: max(number for place, number in counts.items() if place[0] == name) for name, _ in counts}

    def fill(found: FeedForwardLayer) -> tuple[FeedForward, Params]:
        missing = np.full(most[found.place[0]] - found.feed_forward.hidden, -1)
        index = np.concatenate([np.arange(found.feed_forward.hidden), missing])
        return resized(found.feed_forward, found.params, index, model.config.width)

    even = all(count == most[stack] for (stack, _), count in counts.items())
    return model if even else map_feed_forward(model, fill)


def resized(feed_forward: FeedForward, params: Params, units: np.ndarray, width: int) -> tuple[FeedForward, Params]:
    """Return a sub-layer with these units alone, in this order.

    Args:
        feed_forward, params: the sub-layer.
        units: numbers of the units; -1 is a unit of zeros.
        width: size of the residual stream.
    """
    declared: dict[str, nnx.Param[Any]] = flatten(feed_forward.tensors(width))
    index, present = jnp.asarray(np.maximum(units, 0)), jnp.asarray(units >= 0)

    def take(name: str) -> jnp.ndarray:
        array, axes = params[name], declared[name].out_sharding
        if AXIS not in axes:
            return array
        axis = axes.index(AXIS)
        shape = [1] * len(axes)
        shape[axis] = len(units)
        taken = jnp.take(array, index, axis=axis)
        return jnp.where(present.reshape(shape), taken, jnp.zeros((), taken.dtype))

    return dataclasses.replace(feed_forward, hidden=len(units)), {name: take(name) for name in params}
