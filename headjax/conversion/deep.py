"""Every head in a layer of its own: the deep single-head model of a trained one, to start training from."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp

from headjax.attention.base import Call
from headjax.conversion.target import LayerError, Restructuring, find_layers
from headjax.core.errors import require, require_positive
from headjax.core.tensors import Params
from headjax.heads.deepen import after_norm, deepen, part_counts
from headjax.models.base import SLOTS, Model
from headjax.models.layer import Layer, LayerCall

EXAMPLES, LENGTH = 4, 32
"""Sequences that a layer's error is measured on, and their length."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToDeep(Restructuring):
    """A layer of H heads becomes H / heads layers, attention and feed-forward split together (Liu et al. 2021).

    See `headjax.heads.deepen` for what becomes of norms and biases. The function is not kept.

    Attributes:
        heads: heads of each new layer.
    """

    name: ClassVar[str] = "deep"

    heads: int = 1

    def __post_init__(self) -> None:
        require_positive(self, "heads")

    def restructure(
        self, model: Model, stacks: Collection[str] | None, layers: Collection[int] | None, seed: int
    ) -> tuple[Model, tuple[LayerError, ...]]:
        chosen = _whole_layers(model, stacks, layers)
        counts = part_counts(model.config, self.heads, chosen)
        deep = deepen(model, self.heads, chosen)
        errors = []
        for name, stack in model.config.stacks().items():
            old = stack.unstack(model.params[name])
            new_layers, new = deep.config.stacks()[name].layers, deep.config.stacks()[name].unstack(deep.params[name])
            first = 0
            for i, parts in enumerate(counts[name]):
                there = slice(first, first + parts)
                if parts > 1:
                    gap = layer_gap(stack.layers[i], old[i], new_layers[there], new[there], model.config.width, seed)
                    errors.append(LayerError(name, i, gap, None))
                first += parts
        return deep, tuple(errors)


def layer_gap(
    whole: Layer, params: Params, parts: Sequence[Layer], parts_params: Sequence[Params], width: int, seed: int = 0
) -> float:
    """||y - y'|| / ||y|| of the outputs y of a layer and y' of those that take its place, one after another.

    Inputs are standard normal vectors, normalised as the layer's own outputs are (post-norm); decoder layers with
    cross-attention attend to a memory of such. Attention is not masked.

    Args:
        whole, params: the layer.
        parts, parts_params: the layers that take its place, in order.
        width: size of the residual stream.
        seed: of the inputs.
    """
    inputs, memory = jax.random.normal(jax.random.key(seed), (2, EXAMPLES, LENGTH, width))
    norm = whole.residual.norm
    if norm is not None and after_norm(whole.residual):
        inputs, memory = (norm(params["feed_forward_residual"]["norm"], x) for x in (inputs, memory))
    expected = _apply([whole], [params], inputs, memory)
    found = _apply(parts, parts_params, inputs, memory)
    return float(jnp.linalg.norm(found - expected) / jnp.linalg.norm(expected))


def _apply(layers: Sequence[Layer], params: Sequence[Params], x: jax.Array, memory: jax.Array) -> jax.Array:
    for layer, weights in zip(layers, params, strict=True):
        x = _forward(layer.structure(), jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), weights), x, memory)
    return x


@functools.partial(jax.jit, static_argnums=0)
def _forward(layer: Layer, params: Params, x: jax.Array, memory: jax.Array) -> jax.Array:
    return layer(params, x, LayerCall(attention=Call(), memory=memory))[0]


def _whole_layers(
    model: Model, stacks: Collection[str] | None, layers: Collection[int] | None
) -> set[tuple[str, int]] | None:
    """The layers chosen, by stack; a layer is chosen with all its attention or not at all."""
    if stacks is None and layers is None:
        return None
    found = find_layers(model, stacks, layers)
    chosen = {(SLOTS[head_stack][0], layer) for head_stack, layer in found}
    every = {head_stack for head_stack in model.config.attentions() if SLOTS[head_stack][0] in {s for s, _ in chosen}}
    together = " and ".join(sorted(head_stack for head_stack in every if SLOTS[head_stack][0] == "decoder"))
    require(stacks is None or every <= set(stacks), "stacks", f"{together} split together, name both or none")
    return chosen
