"""A Transformer layer: attention, optional cross-attention and feed-forward, each with its residual connection."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
from flax import nnx

from headjax.core.errors import DataError
from headjax.core.kind import Kind
from headjax.nn.attend import Call
from headjax.nn.cache import LayerCache, append, is_empty, stored
from headjax.nn.feed_forward import ActivationName, FeedForward, fold
from headjax.nn.norms import LayerNorm, Norm
from headjax.nn.operands import Dropout, KeyValues
from headjax.nn.passes import Joining, Pass, Probe, SubLayer
from headjax.nn.residuals import Residual, ResidualKind

CACHE = "cache"
"""Key under which a decoding layer reports the keys and values of its self-attention, beside the probe's results."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """The sizes and options of one layer, as its family's config gives them.

    Attributes:
        width: size of the residual stream.
        attention: self-attention formulation.
        cross_attention: attention to an encoder's output, or None.
        hidden: units of the feed-forward.
        activation, gated, feed_forward_bias: see `FeedForward`.
        residual, norm, alpha: see `Residual`.
        dropout: rate on each sub-layer's output.
        attention_dropout: rate on attention probabilities.
        feed_forward_dropout: rate on the inner feed-forward activations.
        stochastic_depth: rate at which an example skips a sub-layer of the stack's last layer in training; rates grow
            evenly from 0 at the first layer (Huang et al. 2016; DeiT).
        attention_softcap: cap of the self-attention's logits, see `Call`; None is none.
        window: self-attention sees only keys at a distance below this, before and after (sliding window); None is any.
        attention_norm: whether `norm` stands before self-attention too, where it does before sub-layers.
        depth: number of layers of the stack.
    """

    width: int
    attention: Kind
    hidden: int
    cross_attention: Kind | None = None
    activation: ActivationName = "gelu"
    gated: bool = False
    feed_forward_bias: bool = True
    residual: ResidualKind = "post_norm"
    norm: Norm = LayerNorm()
    alpha: float = 1.0
    dropout: float = 0.0
    attention_dropout: float = 0.0
    feed_forward_dropout: float = 0.0
    stochastic_depth: float = 0.0
    attention_softcap: float | None = None
    window: int | None = None
    attention_norm: bool = True
    depth: int = 1

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the sub-layers in the order of computation."""
        crossed = () if self.cross_attention is None else ("cross_attention",)
        return ("attention", *crossed, "feed_forward")

    @property
    def residual_slots(self) -> tuple[str, ...]:
        """Keys of the residual connections among the parameters, in the order of computation."""
        return tuple(f"{slot}_residual" for slot in self.slots)

    def make_feed_forward(self) -> FeedForward:
        """Return the feed-forward, its weights declared and not drawn."""
        return FeedForward(self.width, self.hidden, self.activation, gated=self.gated, bias=self.feed_forward_bias)

    def feed_forward_flops(self, length: int) -> int:
        """Count the floating-point operations of the feed-forward for one sequence."""
        return (6 if self.gated else 4) * length * self.width * self.hidden

    def flops(self, length: int) -> int:
        """Count the floating-point operations for one sequence, and one as long that cross-attention reads."""
        attentions = [one for one in (self.attention, self.cross_attention) if one is not None]
        heads: int = sum(one.module(self.width, self.width).flops(length, length) for one in attentions)
        return heads + self.feed_forward_flops(length)

    def structure(self) -> Layer:
        """Return the layer without its heads' original numbers; layers of equal structure form one group."""
        crossed = None if self.cross_attention is None else self.cross_attention.structure()
        return dataclasses.replace(self, attention=self.attention.structure(), cross_attention=crossed)


class TransformerLayer(nnx.Module):
    """The module of a `Layer`.

    Attributes:
        config: the layer.
        attention, cross_attention, feed_forward: the sub-layers; `cross_attention` in decoders that read an encoder.
        attention_residual, cross_attention_residual, feed_forward_residual: their residual connections.
    """

    def __init__(self, config: Layer) -> None:
        self.config, width = config, config.width
        self.attention = config.attention.module(width, width)
        self.attention_residual = self._residual(normed=config.attention_norm)
        if config.cross_attention is not None:
            self.cross_attention = config.cross_attention.module(width, width)
            self.cross_attention_residual = self._residual()
        self.feed_forward = config.make_feed_forward()
        self.feed_forward_residual = self._residual()

    def _residual(self, normed: bool = True) -> Residual:
        config = self.config
        return Residual(config.residual, config.norm if normed else None, config.width, config.alpha)

    def __call__(
        self, x: jax.Array, call: Pass, number: jax.Array | int = 0, cache: LayerCache | None = None
    ) -> tuple[jax.Array, dict[str, Any]]:
        """Return the layer's output `[batch, length, width]`, and by slot the probe's results.

        `number` is that of the layer in its stack; dropout is drawn by it. `cache` holds the tokens before.
        """
        key = None if call.key is None else jax.random.fold_in(call.key, number)
        run = _LayerRun(self, call._replace(key=key), number, cache)
        run.entered = x if self.config.residual == "parallel_norm" else None
        x = run.join("attention", x, run.self_attention)
        if self.config.cross_attention is not None:
            x = run.join("cross_attention", x, run.cross_attention)
        return run.join("feed_forward", x, run.feed_forward), run.reports


class _LayerRun:
    """One call of a layer: shared inputs and reports of its sub-layers.

    Each sub-layer takes its inputs `[batch, length, width]` and returns outputs of the same shape, after dropout.
    """

    def __init__(self, layer: TransformerLayer, call: Pass, number: jax.Array | int, cache: LayerCache | None) -> None:
        self.reports: dict[str, Any] = {}
        self.entered: jax.Array | None = None  # the stream that every sub-layer reads, of a parallel layer
        self._layer, self._config, self._call, self._number, self._cache = layer, layer.config, call, number, cache

    def join(self, slot: str, x: jax.Array, f: SubLayer) -> jax.Array:
        """Return the stream after the sub-layer in a slot."""
        residual = getattr(self._layer, f"{slot}_residual")
        read = x if self.entered is None else self.entered
        if self._call.join is None:
            return residual.join(x, f(residual.enter(read)))
        return self._call.join(Joining(slot, residual, x, f, self._call.query_mask, read))

    def self_attention(self, inputs: jax.Array) -> jax.Array:
        attention, call, window = self._layer.attention, self._call, self._config.window
        key_values = attention.key_values(inputs, call.attention.positions)
        if self._cache is not None:
            before = self._cache.attention
            held = {name: append(before[name], array, call.used) for name, array in key_values.items()}
            self.reports[CACHE] = held
            if not is_empty(call.used):
                key_values = {name: stored(array) for name, array in held.items()}
        options = call.attention if window is None else call.attention.within(window)
        options = options._replace(softcap=self._config.attention_softcap)
        return self._attended("attention", inputs, inputs, key_values, options, dropout=0)

    def cross_attention(self, inputs: jax.Array) -> jax.Array:
        call, cache = self._call, self._cache
        if cache is not None and cache.cross_attention is not None:
            key_values = cache.cross_attention
        elif call.memory is not None:
            key_values = self._layer.cross_attention.key_values(call.memory, None)
        else:
            raise DataError("memory: cross-attention needs an encoder's output to attend to")
        return self._attended("cross_attention", inputs, call.memory, key_values, call.cross_attention, dropout=2)

    def feed_forward(self, inputs: jax.Array) -> jax.Array:
        inner = Dropout(self._config.feed_forward_dropout, fold(self._call.key, 4))
        return self._dropped(self._layer.feed_forward(inputs, inner), 5)

    def _attended(
        self,
        slot: str,
        inputs: jax.Array,
        memory: jax.Array | None,
        key_values: KeyValues,
        options: Call,
        *,
        dropout: int,
    ) -> jax.Array:
        """Return the outputs of an attention; `memory` is the source of its keys and values, `dropout` a number."""
        call, attention = self._call, getattr(self._layer, slot)
        options = options._replace(
            dropout=Dropout(self._config.attention_dropout, fold(call.key, dropout)),
            probabilities=call.probe is not None,
            queries=call.query_mask,
            implementation=call.compute.attention,
        )
        attended = attention.attend(inputs, key_values, options)
        if call.probe is not None:
            read = memory if self._cache is None else None
            seen = Probe(slot, attention, inputs, attended, options.mask, call.query_mask, read)
            self.reports[slot] = call.probe(seen)
        return self._dropped(attention.combine(attended.context), dropout + 1)

    def _dropped(self, outputs: jax.Array, number: int) -> jax.Array:
        """Return a sub-layer's outputs after dropout, as they join the stream."""
        layer, key = self._config, self._call.key
        outputs = Dropout(layer.dropout, fold(key, number))(outputs)
        if key is None or layer.stochastic_depth == 0.0 or layer.depth == 1:
            return outputs
        rate = layer.stochastic_depth * self._number / (layer.depth - 1)
        return Dropout(rate, jax.random.fold_in(key, number + 6)).of_examples(outputs)
