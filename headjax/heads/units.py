"""Feed-forward units: their numbers, their removal, and zeros in place of missing ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from flax import nnx

from headjax.core.errors import HeadjaxError
from headjax.core.kind import own_copy
from headjax.core.modules import bind, declared
from headjax.core.tensors import map_tensors
from headjax.heads.surgery import LayerModule, map_feed_forward
from headjax.models.model import Model, history_entry
from headjax.nn.projections import FeedForward

Place = tuple[str, int]
"""A stack (`encoder`, `decoder`) and a layer in it."""

AXIS = "feed_forward"
"""Logical axis of a feed-forward's units."""


def count_units(model: Model) -> dict[Place, int]:
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


def prune_units(model: Model, removed: Mapping[Place, Collection[int]]) -> Model:
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
    gone = {place: sorted(set(units)) for place, units in removed.items() if units}
    if not gone:
        return model

    def keep(found: LayerModule) -> FeedForward:
        units: FeedForward = found.module
        lost = gone.get((found.stack, found.layer))
        return units if lost is None else resized(units, np.setdiff1d(np.arange(units.hidden), lost))

    pruned = map_feed_forward(model, keep)
    entry = history_entry("prune_units", removed={f"{stack}/{layer}": len(gone[stack, layer]) for stack, layer in gone})
    return pruned.replace(history=(*model.history, entry))


def pad_units(model: Model) -> Model:
    """Return a model of the same function in which the sub-layers of a stack have as many units as the largest.

    Missing units have zero weights, so that they add nothing.
    """
    counts = count_units(model)
    most = {name: max(number for place, number in counts.items() if place[0] == name) for name, _ in counts}

    def fill(found: LayerModule) -> FeedForward:
        there = np.arange(found.module.hidden)
        return resized(found.module, np.append(there, np.full(most[found.stack] - len(there), -1)))

    even = all(count == most[stack] for (stack, _), count in counts.items())
    return model if even else map_feed_forward(model, fill)


def resized(module: FeedForward, units: np.ndarray) -> FeedForward:
    """Return a sub-layer with the units of these numbers alone, in this order; -1 is a unit of zeros."""
    index, present = jnp.asarray(np.maximum(units, 0)), jnp.asarray(units >= 0)

    def take(path: str, weight: nnx.Param[Any]) -> Any:
        array, axes = weight.get_raw_value(), weight.out_sharding
        if AXIS not in axes:
            return array
        axis = axes.index(AXIS)
        shape = [1] * len(axes)
        shape[axis] = len(units)
        taken = jnp.take(array, index, axis=axis)
        return jnp.where(present.reshape(shape), taken, jnp.zeros((), taken.dtype))

    return cast(FeedForward, bind(own_copy(module), map_tensors(take, declared(module))))
