"""Put every head of a trained model in a separate layer, to continue training from there."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp

from headjax.conversion.products import in_float32
from headjax.conversion.target import LayerError, find_layers
from headjax.core.errors import require
from headjax.core.fields import Checked, Size
from headjax.core.modules import arrays, bind, fresh
from headjax.core.tensors import Params
from headjax.heads.deepen import deepen, part_counts
from headjax.models.model import Model
from headjax.nn.block import Block, LayerConfig
from headjax.nn.norms import BEFORE
from headjax.nn.state import State

EXAMPLES, LENGTH = 4, 32
"""Number of sequences that a layer's error is measured on, and their length."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToDeep(Checked):
    """Split a layer of H heads into H / heads layers, attention and feed-forward together (Liu et al. 2021).

    The function changes; `headjax.heads.deepen` says how norms and biases are divided.

    Attributes:
        heads: Number of heads of each new layer.
    """

    name: ClassVar[str] = "deep"

    heads: Size = 1

    def replaced(self, model: Model, stacks: Collection[str] | None, layers: Collection[int] | None) -> Model:
        """Return the model with other layers; JAX can trace it."""
        return deepen(model, self.heads, _whole_layers(model, stacks, layers))

    def restructure(
        self, model: Model, stacks: Collection[str] | None, layers: Collection[int] | None, seed: int
    ) -> tuple[Model, tuple[LayerError, ...]]:
        """Return the deeper model with its history, and the error of each layer that changed."""
        chosen = _whole_layers(model, stacks, layers)
        counts = part_counts(model.config, self.heads, chosen)
        deep = self.replaced(model, stacks, layers)
        errors = []
        for name, stack in model.config.stacks().items():
            old = stack.modules(model.params[name])
            new = iter(deep.config.stacks()[name].modules(deep.params[name]))
            for i, count in enumerate(counts[name]):
                parts = list(itertools.islice(new, count))
                if count > 1:
                    errors.append(LayerError(name, i, layer_gap(old[i], parts, seed), None))
        return deep, tuple(errors)


def layer_gap(whole: Block, parts: Sequence[Block], seed: int = 0) -> float:
    """Return ||y - y'|| / ||y|| of the outputs y of a layer and y' of those in its place, for random inputs."""
    inputs, memory = jax.random.normal(jax.random.key(seed), (2, EXAMPLES, LENGTH, whole.attention.width))
    if whole.config.residual not in BEFORE:
        norm = whole.feed_forward_residual.norm
        inputs, memory = norm(inputs), norm(memory)
    expected = _apply([whole], inputs, memory)
    found = _apply(parts, inputs, memory)
    return float(jnp.linalg.norm(found - expected) / jnp.linalg.norm(expected))


def _apply(layers: Sequence[Block], x: jax.Array, memory: jax.Array) -> jax.Array:
    for layer in layers:
        x = _forward(layer.config.structure(), in_float32(arrays(layer)), x, memory)
    return x


@functools.partial(jax.jit, static_argnums=0)
def _forward(layer: LayerConfig, params: Params, x: jax.Array, memory: jax.Array) -> jax.Array:
    return bind(fresh(Block, layer), params)(State(x, memory))[0]


def _whole_layers(
    model: Model, stacks: Collection[str] | None, layers: Collection[int] | None
) -> set[tuple[str, int]] | None:
    """Return the chosen (stack, layer); self- and cross-attention of a layer are chosen together or not at all."""
    if stacks is None and layers is None:
        return None
    found = find_layers(model, stacks, layers)
    chosen = {(model.config.site(*place).stack, place[1]) for place in found}
    changed = {stack for stack, _ in chosen}
    every = {site.head_stack: site.stack for site in model.config.sites() if site.stack in changed}
    together = " and ".join(sorted(name for name, stack in every.items() if stack == "decoder"))
    require(stacks is None or every.keys() <= set(stacks), "stacks", f"{together} split together, name both or none")
    return chosen
