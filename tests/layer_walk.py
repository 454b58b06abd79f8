"""A model computed block by block."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from headjax.models.model import Model
from headjax.models.walk import LayerBlock, SubLayerSeen, embed, step


class Walk(NamedTuple):
    """The last stack's output, and every sub-layer by stack, layer and slot."""

    output: jax.Array
    seen: dict[tuple[str, int, str], SubLayerSeen]


def walk(model: Model, batch: dict, watch: bool = False) -> Walk:
    """Compute the model on a batch; with `watch` every layer is computed once for each of its sub-layers."""
    state, found = embed(model, batch), {}
    for block in model.blocks():
        if watch and isinstance(block, LayerBlock):
            for slot in block.layer.config.slots:
                found[block.stack, block.place.value, slot] = block.sub_layers(state)[1][slot]
        state = step(block, state)
    return Walk(model.finish(state).hidden, found)


def joined(seen: SubLayerSeen) -> np.ndarray:
    """The stream after a sub-layer, before a norm."""
    shortcut, branch, stream, output = map(np.asarray, (seen.shortcut, seen.branch, seen.stream, seen.output))
    return shortcut.astype(np.float64) * stream + branch * output
