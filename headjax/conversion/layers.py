"""Finding a model's attention layers and reading their parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import jax
import jax.numpy as jnp

from headjax.attention import Attention, Gated, NoHeads
from headjax.core.errors import ConfigError
from headjax.core.tensors import Params
from headjax.models.base import SLOTS, Model

HeadLayer = tuple[str, int]
"""A head stack and a layer in it."""


def find_layers(
    model: Model, stacks: Collection[str] | None, layers: Collection[int] | None
) -> dict[HeadLayer, Attention]:
    """The formulations of the chosen layers that have heads; of layers that share their parameters only the first.

    Args:
        model: the model.
        stacks: head stacks; None is all.
        layers: layers, counted from 0; None is all.

    Raises:
        ConfigError: the model has no such head stack or layer.
    """
    attentions = model.config.attentions()
    for stack in stacks or ():
        if stack not in attentions:
            raise ConfigError(f"stacks: the model has no head stack {stack!r}; it has {', '.join(attentions)}")
    chosen_stacks = {name: found for name, found in attentions.items() if stacks is None or name in stacks}
    most = max(map(len, chosen_stacks.values()), default=0)
    for number in layers or ():
        if not 0 <= number < most:
            raise ConfigError(f"layers: there is no layer {number}; they are numbered 0 to {most - 1}")
    places = {}
    for name, formulations in chosen_stacks.items():
        home = model.config.stacks()[SLOTS[name][0]]
        for layer, attention in enumerate(formulations):
            tied = home.tied_layers(layer)
            chosen = layers is None or not set(layers).isdisjoint(tied)
            if chosen and layer == tied[0] and not isinstance(attention, NoHeads):
                places[name, layer] = attention
    return places


def layer_params(model: Model, places: Iterable[HeadLayer]) -> dict[HeadLayer, tuple[Attention, Params]]:
    """The formulations of these layers and their parameters in float32."""
    unstacked = {name: stack.unstack(model.params[name]) for name, stack in model.config.stacks().items()}
    attentions = model.config.attentions()
    found = {}
    for name, layer in places:
        home, slot = SLOTS[name]
        params = jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), unstacked[home][layer][slot])
        found[name, layer] = attentions[name][layer], params
    return found


def inside_gates(attention: Attention, params: Params) -> tuple[Attention, Params]:
    """What is inside a gated layer; any other layer as it is."""
    return (attention.inner, params["inner"]) if isinstance(attention, Gated) else (attention, params)
