"""Put each head of a layer into a separate layer: the deep single-head Transformer of Liu, Liu and Han (2021).

Both sub-layers of a layer with H heads are sums (their equations 1 and 3): attention sums over its heads, the
feed-forward sub-layer over H slices of its inner units. H layers with one head and one slice each take its place:

    x_h' = LN(x_h + ATT_h(x_h)),   x_(h+1) = LN(x_h' + FFN_h(x_h')),   h = 1..H

The parts were summed and are now composed, so the function changes. The heads keep their weights; only norms and
biases, which every new layer has, add parameters and work.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from headjax.conversion.target import LayerError, Target, find_layers, in_float32
from headjax.core.errors import ConfigError, require
from headjax.core.fields import Size
from headjax.core.kind import Kind, fresh
from headjax.core.modules import arrays, bind
from headjax.core.serialize import kind_of
from headjax.core.tensors import Params, flatten, nested
from headjax.heads.surgery import resized
from headjax.models.config import ModelConfig
from headjax.models.model import Model
from headjax.models.walk import FEED_FORWARD
from headjax.nn.block import Block, LayerConfig, State
from headjax.nn.module import AttentionModule
from headjax.nn.norms import BEFORE, Normalisation
from headjax.nn.projections import FeedForward


def deep_config(config: ModelConfig, heads: int = 1) -> ModelConfig:
    """Return the architecture of a fresh model; heads count from 0 where no relative positions know their numbers."""
    counts, layers = part_counts(config, heads, None), dict[str, list[LayerConfig]]()
    for name, stack in config.stacks().items():
        pairs = zip(stack.layers, counts[name], strict=True)
        new = [part for layer, parts in pairs for part in _split_configs(layer, parts)]
        layers[name] = new if stack.position_bias is not None else [layer.structure() for layer in new]
    return config.with_layers(layers)


@functools.lru_cache
def _split_configs(layer: LayerConfig, parts: int) -> list[LayerConfig]:
    """Return the layers that a layer becomes; nothing is computed."""
    return [new.config for new in jax.eval_shape(functools.partial(split_layer, parts=parts), fresh(Block, layer))]


def deepen(model: Model, heads: int = 1, chosen: Collection[tuple[str, int]] | None = None) -> Model:
    """Return the model with its layers split into layers of `heads` heads each, from the same weights.

    Every new layer has its heads and its slice of the feed-forward weights. The biases b_O and b_2, which a sub-layer
    adds once, are divided evenly, so that the new layers' sub-layers sum to the old one's. Tensors that heads share
    (keys of grouped attention, collaborative projections) are copied into every new layer, and so are norms before a
    sub-layer (pre-norm). Of the norms after a sub-layer (post-norm) the last new layer has the old one; the layers
    between have a constant norm that passes the stream on at its size, see `level`. Heads keep their numbers: with 12
    heads a layer, `encoder/3/7` becomes `encoder/43/7`. The history holds the number of parts of each layer.
    """
    config, params = model.config, dict(model.params)
    counts, layers = part_counts(config, heads, chosen), {}
    for name, stack in config.stacks().items():
        pairs = zip(stack.modules(params[name]), counts[name], strict=True)
        layers[name] = [new for layer, parts in pairs for new in split_layer(layer, parts)]
    deep = config.with_layers({name: [layer.config for layer in blocks] for name, blocks in layers.items()})
    for name, blocks in layers.items():
        params[name] = deep.stacks()[name].restack([arrays(layer) for layer in blocks], params[name])
    return model.replace(config=deep, params=params).with_entry("deepen", heads=heads, layers=counts)


def part_counts(config: ModelConfig, heads: int, chosen: Collection[tuple[str, int]] | None) -> dict[str, list[int]]:
    """Return the number of layers of `heads` heads that each layer splits into, by stack; 1 where it is not chosen."""
    require(heads >= 1, "heads", f"must be at least 1, got {heads}")
    counts: dict[str, list[int]] = {}
    for name, stack in config.stacks().items():
        require(not stack.shared, name, "its layers are one layer used again, and cannot become different ones")
        counts[name] = [
            _part_count(f"{name}/{i}", layer, heads) if chosen is None or (name, i) in chosen else 1
            for i, layer in enumerate(stack.layers)
        ]
    more = any(count > 1 for parts in counts.values() for count in parts)
    number = f"{heads} head" + ("s" if heads > 1 else "")
    require(more, "heads", f"the layers have {number} already, there is nothing to split")
    return counts


def _part_count(where: str, layer: LayerConfig, heads: int) -> int:
    """Return the number of layers that a layer splits into; its sub-layers must agree."""
    parts_of: dict[str, int] = {}
    for slot in layer.slots[:-1]:  # the last one is the feed-forward
        attention = getattr(layer, slot)
        number = attention.num_heads
        require(number > 0, f"{where}: {slot}", f"{kind_of(attention)} attention has no heads; it cannot be split")
        uneven = f"{where}: {slot} has {number} heads, which do not split into layers of {heads}"
        require(number % heads == 0, "heads", uneven)
        parts_of[slot] = number // heads
    counts = ", ".join(f"{slot} into {count}" for slot, count in parts_of.items())
    require(len(set(parts_of.values())) == 1, f"{where}: cross_attention", f"the layer would split {counts} layers")
    parts, hidden = parts_of["attention"], layer.hidden
    require(hidden % parts == 0, f"{where}: hidden", f"{hidden} does not split evenly into {parts} layers")
    return parts


def split_layer(layer: Block, parts: int) -> list[Block]:
    """Return the layers that a layer becomes, see `deepen`: equal groups of heads and units."""
    if parts == 1:
        return [layer]
    config, last = layer.config, arrays(layer)
    cut = {slot: split_attention(getattr(layer, slot), parts) for slot in config.slots[:-1]}
    units = split_feed_forward(layer.feed_forward, parts)
    between = dict(last)
    if config.residual not in BEFORE:
        for name in config.residual_slots:
            between[name] = last[name] | {"norm": arrays(level(getattr(layer, name).norm))}
    split = []
    for i in range(parts):
        attentions = {slot: pieces[i] for slot, pieces in cut.items()}
        kinds: dict[str, Any] = {slot: attention.kind for slot, attention in attentions.items()}
        weights = {slot: arrays(piece) for slot, piece in (attentions | {FEED_FORWARD: units[i]}).items()}
        new = fresh(Block, dataclasses.replace(config, hidden=units[i].hidden, **kinds))
        split.append(bind(new, (last if i == parts - 1 else between) | weights))
    return split


def level(norm: Normalisation) -> Normalisation:
    """Return a norm of constant gamma and beta: outputs of the same mean and variance, all features scaled alike.

        gamma' = sqrt(mean(gamma^2) + var(beta)),   beta' = mean(beta)

    Applied to the output of a norm with gamma and beta, this norm is nearly the identity. Gamma and beta themselves,
    applied once for every head, would reduce the stream to the few features with a large gamma.
    """
    gamma, beta = norm.gain(), None if norm.bias is None else norm.bias[...]
    size = jnp.sqrt(jnp.square(gamma).mean() + (0.0 if beta is None else beta.var()))
    return norm.holding(jnp.full_like(gamma, size), None if beta is None else jnp.full_like(beta, beta.mean()))


def split_attention(module: AttentionModule, parts: int) -> list[AttentionModule]:
    """Return `parts` equal groups of an attention's heads; their outputs sum to the whole's."""
    size = module.num_heads // parts
    groups = [module.keep_heads(range(i * size, (i + 1) * size)) for i in range(parts)]
    return [bind(group, _share_bias(group.params, parts, "output/bias")) for group in groups]


def split_feed_forward(module: FeedForward, parts: int) -> list[FeedForward]:
    """Return `parts` equal slices of a feed-forward's inner units; their outputs sum to the whole's."""
    slices = [resized(module, units) for units in np.split(np.arange(module.hidden), parts)]
    return [bind(piece, _share_bias(arrays(piece), parts, "down_bias")) for piece in slices]


def _share_bias(params: Params, parts: int, name: str) -> Params:
    """Return the parameters with the bias of this name, at any depth, divided by `parts`."""
    flat = flatten(params)
    return nested({path: array / parts if f"/{path}".endswith(f"/{name}") else array for path, array in flat.items()})


EXAMPLES, LENGTH = 4, 32
"""Number of sequences that a layer's error is measured on, and their length."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToDeep(Target):
    """Split a layer of H heads into H / heads layers, attention and feed-forward together (Liu et al. 2021).

    The function changes; `deepen` says how norms and biases are divided.

    Attributes:
        heads: Number of heads of each new layer.
    """

    name: ClassVar[str] = "deep"

    heads: Size = 1

    def check(self, attention: Kind, width: int, memory_width: int) -> None:
        raise ConfigError("deep replaces layers; convert to it alone")

    def replaced(self, model: Model, stacks: Collection[str] | None, layers: Collection[int] | None) -> Model:
        """Return the model with other layers, its history included; JAX can trace it."""
        if stacks is None and layers is None:
            return deepen(model, self.heads)
        # Self- and cross-attention of a layer are chosen together or not at all.
        places = find_layers(model, stacks, layers)
        chosen = {(model.config.site(*place).stack, place[1]) for place in places}
        names = {stack for stack, _ in chosen}
        every = {site.head_stack: site.stack for site in model.config.sites() if site.stack in names}
        both = " and ".join(sorted(name for name, stack in every.items() if stack == "decoder"))
        require(stacks is None or every.keys() <= set(stacks), "stacks", f"{both} split together, name both or none")
        return deepen(model, self.heads, chosen)


def layer_errors(model: Model, deep: Model, seed: int) -> tuple[LayerError, ...]:
    """Return the error of each layer of a model that others have replaced in its deeper form."""
    errors = []
    for name, counts in deep.history[-1]["layers"].items():
        new = iter(deep.config.stacks()[name].modules(deep.params[name]))
        for i, layer in enumerate(model.config.stacks()[name].modules(model.params[name])):
            parts = list(itertools.islice(new, counts[i]))
            if len(parts) > 1:
                errors.append(LayerError(name, i, layer_gap(layer, parts, seed), None))
    return tuple(errors)


def layer_gap(layer: Block, parts: Sequence[Block], seed: int) -> float:
    """Return ||y - y'|| / ||y|| of the outputs y of a layer and y' of those in its place, for random inputs."""
    inputs, memory = jax.random.normal(jax.random.key(seed), (2, EXAMPLES, LENGTH, layer.attention.width))
    if layer.config.residual not in BEFORE:
        norm = layer.feed_forward_residual.norm
        inputs, memory = norm(inputs), norm(memory)

    def output(layers: Sequence[Block]) -> jax.Array:
        x = inputs
        for each in layers:
            x, _ = in_float32(each)(State(x, memory))
        return x

    expected = output([layer])
    return float(jnp.linalg.norm(output(parts) - expected) / jnp.linalg.norm(expected))
