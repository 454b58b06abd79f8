"""A model computed layer by layer with `headjax.models.layerwise`."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.models.compute import Compute
from headjax.models.layerwise import SubLayerSeen, layer_output, place_of, stack_end, stack_input
from headjax.models.model import Model


class Walk(NamedTuple):
    """The last stack's output, and every sub-layer by stack, layer and slot."""

    output: jax.Array
    seen: dict[tuple[str, int, str], SubLayerSeen]


def walk(model: Model, batch: dict, watch: bool = False) -> Walk:
    """Compute the model on a batch; with `watch` every layer is computed once for each of its sub-layers."""
    memory, found = None, {}
    for name, stack in model.config.stacks().items():
        stream = stack_input(model.config, model.params, batch, name, memory, Compute())
        for number, weights in enumerate(stack.unstack(model.params[name])):
            place, before = place_of(model.config, name, number), stream
            for slot in stack.layers[number].slots if watch else (None,):
                stream, seen = layer_output(
                    model.config, model.params, batch, place, jnp.asarray(number), weights, before, watched=slot
                )
                if seen is not None:
                    found[name, number, slot] = seen
        memory = stack_end(model.config, model.params, name, stream, Compute())
    return Walk(memory, found)


def joined(seen: SubLayerSeen) -> np.ndarray:
    """The stream after a sub-layer, before a norm."""
    shortcut, branch, stream, output = map(np.asarray, (seen.shortcut, seen.branch, seen.stream, seen.output))
    return shortcut.astype(np.float64) * stream + branch * output
