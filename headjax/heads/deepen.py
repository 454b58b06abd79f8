"""Put a layer's heads into layers of their own: the deep single-head Transformer of Liu, Liu and Han (2021).

Both sub-layers of a layer with H heads are sums (their equations 1 and 3): attention sums over its heads, the
feed-forward sub-layer over H slices of its inner units. H layers with one head and one slice each take its place:

    x_h' = LN(x_h + ATT_h(x_h)),   x_(h+1) = LN(x_h' + FFN_h(x_h')),   h = 1..H

The parts were summed and are now composed, so the function changes. The heads keep their weights; only norms and
biases, which every new layer has, add parameters and work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any, TypeVar

import jax.numpy as jnp
from flax import nnx

from headjax.attention import Attention, NoHeads, Talking
from headjax.attention.formulation import Wrapping
from headjax.core import history
from headjax.core.errors import require
from headjax.core.fields import Size
from headjax.core.modules import arrays
from headjax.core.norms import Normalisation
from headjax.core.serialize import kind, kind_of
from headjax.core.tensors import Params, map_tensors
from headjax.models.config import ModelConfig
from headjax.models.layer import Layer
from headjax.models.model import Model
from headjax.models.recipe import Recipe, Start
from headjax.models.residuals import PreNorm, Residual
from headjax.models.stack import SharedStack, Stack
from headjax.models.sublayers import FeedForward

C = TypeVar("C", bound=ModelConfig)

Parts = dict[str, list[int]]
"""Number of layers that each layer splits into, by stack (`encoder`, `decoder`)."""


@kind("deep")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Deep(Recipe):
    """Recipe of another recipe's model with its heads in layers of their own (Liu et al. 2021).

    A recipe with trained weights (`directory`) hands them on. The function changes.

    Attributes:
        of: Recipe of the model with many heads a layer.
        heads: Number of heads of each new layer.
    """

    of: Recipe
    heads: Size = 1

    def build(self) -> ModelConfig:
        return deep_config(self.of.build(), self.heads)

    def start(self, seed: int = 0) -> Start:
        start = self.of.start(seed)
        if start.params is None:
            return Start(deep_config(start.config, self.heads))
        model = deepen(Model(start.config, start.params, start.history, start.tokenizer), self.heads)
        return Start(model.config, model.params, model.tokenizer, model.history)


def deep_config(config: C, heads: int = 1) -> C:
    """Return the architecture of a fresh model with `heads` heads in every layer and as many more layers.

    Heads are numbered from 0 in every layer, except where relative positions know them by their numbers.

    Raises:
        ConfigError: A layer cannot be split, or no layer has more heads; the message names the layer.
    """
    stacks = {}
    for name, stack in _split_stacks(config, part_counts(config, heads)).items():
        named = stack.position_bias is not None
        layers = stack.layers if named else tuple(layer.structure() for layer in stack.layers)
        stacks[name] = dataclasses.replace(stack, layers=layers)
    return config.replace_stacks(stacks)  # type: ignore[return-value]


def deepen(model: Model, heads: int = 1, chosen: Collection[tuple[str, int]] | None = None) -> Model:
    """Return the model with its layers split into layers of `heads` heads each, from the same weights.

    Every new layer has its heads and its slice of the feed-forward weights. The biases b_O and b_2, which a sub-layer
    adds once, are divided evenly, so that the new layers' sub-layers sum to the old one's. Tensors that heads share
    (keys of grouped attention, collaborative projections) are copied into every new layer, and so are norms before a
    sub-layer (pre-norm). Of the norms after a sub-layer (post-norm) the last new layer has the old one; the layers
    between have a constant norm that passes the stream on at its size, see `level`. Heads keep their numbers: with 12
    heads a layer, `encoder/3/7` becomes `encoder/43/7`. The history holds the number of parts of each layer.

    Args:
        model: Model to split.
        heads: Number of heads of each new layer.
        chosen: (stack, layer) of the layers to split, self- and cross-attention together; None is all.

    Raises:
        ConfigError: See `deep_config`.
    """
    counts = part_counts(model.config, heads, chosen)
    stacks = _split_stacks(model.config, counts)
    params = dict(model.params)
    for name, old in model.config.stacks().items():
        unstacked = zip(old.layers, old.unstack(params[name]), counts[name], strict=True)
        split = [new for layer, weights, n in unstacked for new in split_params(layer, weights, n, model.config.width)]
        params[name] = stacks[name].restack(split, params[name])
    entry = history.entry("deepen", heads=heads, layers=counts)
    config = model.config.replace_stacks(stacks)
    return model.replace(config=config, params=params, history=(*model.history, entry))


def part_counts(config: ModelConfig, heads: int, chosen: Collection[tuple[str, int]] | None = None) -> Parts:
    """Return the number of layers of `heads` heads that each layer splits into; 1 where it is not chosen.

    Raises:
        ConfigError: See `deep_config`.
    """
    require(heads >= 1, "heads", f"must be at least 1, got {heads}")
    counts: Parts = {}
    for name, stack in config.stacks().items():
        shared = isinstance(stack, SharedStack)
        require(not shared, name, "its layers are one layer used again and again, which cannot become different ones")
        counts[name] = [
            _parts(f"{name}/{i}", layer, heads) if chosen is None or (name, i) in chosen else 1
            for i, layer in enumerate(stack.layers)
        ]
    more = any(count > 1 for parts in counts.values() for count in parts)
    number = f"{heads} head" + ("s" if heads > 1 else "")
    require(more, "heads", f"the layers have {number} already, there is nothing to split")
    return counts


def split_layer(layer: Layer, parts: int) -> list[Layer]:
    """Return the layers that a layer becomes: equal groups of heads and inner units; heads keep their numbers."""
    if parts == 1:
        return [layer]
    feed_forward = dataclasses.replace(layer.feed_forward, hidden=layer.feed_forward.hidden // parts)
    groups = {
        slot: [attention.with_heads(group) for group in _groups(attention, parts)] for slot, attention in _slots(layer)
    }
    return [
        dataclasses.replace(layer, feed_forward=feed_forward, **{slot: new[i] for slot, new in groups.items()})  # type: ignore[arg-type]
        for i in range(parts)
    ]


def split_params(layer: Layer, params: Params, parts: int, width: int) -> list[Params]:
    """Return the parameters of the layers that a layer becomes, see `deepen`."""
    if parts == 1:
        return [params]
    cut = {slot: split_attention(attention, params[slot], parts, width) for slot, attention in _slots(layer)}
    cut["feed_forward"] = split_feed_forward(layer.feed_forward, params["feed_forward"], parts, width)
    between = dict(params)
    norm = layer.residual.norm
    if norm is not None and after_norm(layer.residual):
        for name in layer.residual_slots:
            between[name] = params[name] | {"norm": arrays(level(norm.bind(params[name]["norm"], width)))}
    rest = [between] * (parts - 1) + [params]
    return [rest[i] | {name: pieces[i] for name, pieces in cut.items()} for i in range(parts)]


def after_norm(residual: Residual) -> bool:
    """Return whether the residual connection normalises its sum (post-norm)."""
    return residual.norm is not None and not isinstance(residual, PreNorm)


def level(norm: Normalisation) -> Normalisation:
    """Return a norm of constant gamma and beta: outputs of the same mean and variance, all features scaled alike.

        gamma' = sqrt(mean(gamma^2) + var(beta)),   beta' = mean(beta)

    Applied to the output of a norm with gamma and beta, this norm is nearly the identity. Gamma and beta themselves,
    applied once for every head, would reduce the stream to the few features with a large gamma.
    """
    gamma, beta = norm.gain(), None if norm.bias is None else norm.bias[...]
    size = jnp.sqrt(jnp.square(gamma).mean() + (0.0 if beta is None else beta.var()))
    return norm.holding(jnp.full_like(gamma, size), None if beta is None else jnp.full_like(beta, beta.mean()))


def split_attention(attention: Attention, params: Params, parts: int, width: int) -> list[Params]:
    """Return the parameters of each of `parts` equal groups of heads; their outputs sum to the layer's."""
    module = attention.bind(params, width, width)
    kept = [module.keep_heads(group).params for group in _groups(attention, parts)]
    return [_share_bias(piece, parts, "output_bias") for piece in kept]


def split_feed_forward(feed_forward: FeedForward, params: Params, parts: int, width: int) -> list[Params]:
    """Return the parameters of each of `parts` equal slices of the inner units; their outputs sum to the whole's."""
    size = feed_forward.hidden // parts

    def part(index: int) -> Params:
        def cut(name: str, tensor: nnx.Param[Any]) -> Any:
            if "feed_forward" not in tensor.out_sharding:
                return params[name]
            before = (slice(None),) * tensor.out_sharding.index("feed_forward")
            return params[name][*before, index * size : (index + 1) * size]

        return _share_bias(map_tensors(cut, feed_forward.tensors(width)), parts, "down_bias")

    return [part(index) for index in range(parts)]


def _share_bias(params: Params, parts: int, name: str) -> Params:
    """Return the parameters with the bias of this name, at any depth, divided by `parts`."""
    return {
        key: _share_bias(entry, parts, name) if isinstance(entry, dict) else entry / parts if key == name else entry
        for key, entry in params.items()
    }


def _split_stacks(config: ModelConfig, counts: Parts) -> dict[str, Stack]:
    def split(stack: Stack, parts: list[int]) -> Stack:
        layers = [new for layer, n in zip(stack.layers, parts, strict=True) for new in split_layer(layer, n)]
        return dataclasses.replace(stack, layers=tuple(layers))

    return {name: split(stack, counts[name]) for name, stack in config.stacks().items()}


def _slots(layer: Layer) -> list[tuple[str, Attention]]:
    both = ("attention", layer.attention), ("cross_attention", layer.cross_attention)
    return [(slot, attention) for slot, attention in both if attention is not None]


def _groups(attention: Attention, parts: int) -> list[range]:
    size = attention.num_heads // parts
    return [range(first, first + size) for first in range(0, attention.num_heads, size)]


def _parts(where: str, layer: Layer, heads: int) -> int:
    """Return the number of layers that a layer splits into; its sub-layers must agree."""
    found: dict[str, int] = {}
    for slot, attention in _slots(layer):
        innermost = attention
        while isinstance(innermost, Wrapping):
            innermost = innermost.inner
        splits = not isinstance(innermost, NoHeads | Talking)
        reason = "has no heads" if isinstance(attention, NoHeads) else "mixes its heads, so that none stands alone"
        require(splits, f"{where}: {slot}", f"{kind_of(attention)} attention {reason}; it cannot be split")
        even = attention.num_heads % heads == 0
        require(
            even, "heads", f"{where}: {slot} has {attention.num_heads} heads, which do not split into layers of {heads}"
        )
        found[slot] = attention.num_heads // heads
    counts = ", ".join(f"{slot} into {count}" for slot, count in found.items())
    require(len(set(found.values())) == 1, f"{where}: cross_attention", f"the layer would split {counts} layers")
    parts = found["attention"]
    hidden = layer.feed_forward.hidden
    require(hidden % parts == 0, f"{where}: feed_forward.hidden", f"{hidden} does not split evenly into {parts} layers")
    return parts
