"""A Transformer layer: attention, optional cross-attention and feed-forward, each with its residual connection."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
from flax import nnx

from headjax.attention.attend import Call
from headjax.attention.operands import Attended, Dropout, KeyValues
from headjax.core.errors import DataError
from headjax.core.fields import Rate, Size
from headjax.core.kind import Kind
from headjax.core.modules import Spec, arrays
from headjax.core.serialize import kind
from headjax.core.tensors import Params
from headjax.models.cache import LayerCache, append, is_empty, stored
from headjax.models.residuals import PostNorm, Residual
from headjax.models.sublayers import FeedForward, fold


class Probe(NamedTuple):
    """One attention call as a probe function sees it.

    Attributes:
        slot: `attention` or `cross_attention`.
        module: the attention.
        inputs: `[batch, query, width]`, from which queries are computed.
        attended: contexts and probabilities.
        mask: which keys each query may see.
        query_mask: `[batch, query]` bool, False at padding; None without padding.
        memory_inputs: `[batch, key, width]`, from which keys and values are computed; None if they come from a cache.
    """

    slot: str
    module: Any
    inputs: jax.Array
    attended: Attended
    mask: Any
    query_mask: jax.Array | None
    memory_inputs: jax.Array | None = None

    @property
    def attention(self) -> Kind:
        """The formulation."""
        return cast(Kind, self.module.kind)

    @property
    def params(self) -> Params:
        """Its parameters."""
        return arrays(self.module)


ProbeFunction = Callable[[Probe], Any]
"""Reduces one attention call to the statistics wanted; stacked over layers by the model."""


SubLayer = Callable[[jax.Array], jax.Array]
"""f, `[batch, length, width]` to the same shape, with its parameters and its dropout inside."""


class Joining(NamedTuple):
    """A sub-layer about to join the residual stream.

    Attributes:
        slot: `attention`, `cross_attention` or `feed_forward`.
        residual: module of the residual connection.
        x: `[batch, length, width]`, the stream.
        f: the sub-layer.
        mask: `[batch, length]` bool, False at padding; None without padding.
    """

    slot: str
    residual: Any
    x: jax.Array
    f: SubLayer
    mask: jax.Array | None

    def joined(self) -> jax.Array:
        """Return the stream after the sub-layer."""
        stream: jax.Array = self.residual.join(self.x, self.f(self.residual.enter(self.x)))
        return stream


Join = Callable[[Joining], jax.Array]
"""What a trace does where a sub-layer joins the stream: `Joining.joined`, or something in its place."""


class LayerCall(NamedTuple):
    """Everything about one layer call that is neither parameter nor input.

    Attributes:
        attention: the self-attention call.
        cross_attention: the cross-attention call, in decoders that have one.
        encoder_output: `[batch, key, width]`, for cross-attention.
        query_mask: `[batch, length]` bool, False at padding.
        key: PRNG key of this layer's dropout, None outside training.
        probe: see `Probe`.
        number: of the layer within its stack, a scalar that may be traced.
        depth: number of layers of the stack.
        cache: keys and values of the tokens before, when decoding.
        used: number of tokens in the cache.
        join: how sub-layers join the stream; None is as their residual connections do.
    """

    attention: Call
    cross_attention: Call = Call()
    encoder_output: jax.Array | None = None
    query_mask: jax.Array | None = None
    key: jax.Array | None = None
    probe: ProbeFunction | None = None
    number: jax.Array | int = 0
    depth: int = 1
    cache: LayerCache | None = None
    used: jax.Array | int = 0
    join: Join | None = None


CACHE = "cache"
"""Key under which a decoding layer reports the keys and values of its self-attention, beside the probe's results."""


@kind("layer")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer(Spec):
    """One layer.

    Attributes:
        attention: self-attention formulation.
        feed_forward: feed-forward sub-layer.
        cross_attention: attention to an encoder's output, or None.
        residual: how each sub-layer joins the stream.
        dropout: rate on each sub-layer's output.
        attention_dropout: rate on attention probabilities.
        feed_forward_dropout: rate on the inner feed-forward activations.
        window: self-attention sees only keys at a distance below this, before and after (sliding window); None is any.
        stochastic_depth: rate at which an example skips a sub-layer of the stack's last layer in training; rates grow
            evenly from 0 at the first layer (Huang et al. 2016; DeiT).
    """

    attention: Kind
    feed_forward: FeedForward
    cross_attention: Kind | None = None
    residual: Residual = PostNorm()
    dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    feed_forward_dropout: Rate = 0.0
    stochastic_depth: Rate = 0.0
    window: Size | None = None

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the sub-layers in the order of computation."""
        crossed = () if self.cross_attention is None else ("cross_attention",)
        return ("attention", *crossed, "feed_forward")

    @property
    def residual_slots(self) -> tuple[str, ...]:
        """Keys of the residual connections among the parameters, in the order of computation."""
        return tuple(f"{slot}_residual" for slot in self.slots)

    def module(self, width: int, memory_width: int) -> TransformerLayer:
        """Return the module; `memory_width` is the width of the encoder output, for cross-attention."""
        return TransformerLayer(self, width, memory_width)

    def flops(self, width: int, length: int, memory_width: int = 0, memory_length: int = 0) -> int:
        """Count the floating-point operations of one forward of one sequence, and its encoder output if crossed."""
        total: int = self.attention.module(width, width).flops(length, length) + self.feed_forward.flops(width, length)
        if self.cross_attention is not None:
            total += self.cross_attention.module(width, memory_width).flops(length, memory_length)
        return total

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

    def __init__(self, config: Layer, width: int, memory_width: int) -> None:
        self.config = config
        self.attention = config.attention.module(width, width)
        self.attention_residual = config.residual.module(width)
        if config.cross_attention is not None:
            self.cross_attention = config.cross_attention.module(width, memory_width)
            self.cross_attention_residual = config.residual.module(width)
        self.feed_forward = config.feed_forward.module(width)
        self.feed_forward_residual = config.residual.module(width)

    def __call__(self, x: jax.Array, call: LayerCall) -> tuple[jax.Array, dict[str, Any]]:
        """Return the layer's output `[batch, length, width]`, and by slot the probe's results."""
        run = _LayerRun(self, call)
        x = run.join("attention", x, run.self_attention)
        if self.config.cross_attention is not None:
            x = run.join("cross_attention", x, run.cross_attention)
        return run.join("feed_forward", x, run.feed_forward), run.reports


class _LayerRun:
    """One call of a layer: shared inputs and reports of its sub-layers.

    Each sub-layer takes its inputs `[batch, length, width]` and returns outputs of the same shape, after dropout.
    """

    def __init__(self, layer: TransformerLayer, call: LayerCall) -> None:
        self.reports: dict[str, Any] = {}
        self._layer, self._config, self._call = layer, layer.config, call

    def join(self, slot: str, x: jax.Array, f: SubLayer) -> jax.Array:
        """Return the stream after the sub-layer in a slot."""
        joining = Joining(slot, getattr(self._layer, f"{slot}_residual"), x, f, self._call.query_mask)
        return joining.joined() if self._call.join is None else self._call.join(joining)

    def self_attention(self, inputs: jax.Array) -> jax.Array:
        attention, call = self._layer.attention, self._call
        key_values = attention.key_values(inputs, call.attention.positions)
        if call.cache is not None:
            before = call.cache.attention
            held = {name: append(before[name], array, call.used) for name, array in key_values.items()}
            self.reports[CACHE] = held
            if not is_empty(call.used):
                key_values = {name: stored(array) for name, array in held.items()}
        window = self._config.window
        options = call.attention if window is None else call.attention.within(window)
        return self._attended("attention", inputs, inputs, key_values, options, dropout=0)

    def cross_attention(self, inputs: jax.Array) -> jax.Array:
        call = self._call
        if call.cache is not None and call.cache.cross_attention is not None:
            key_values = call.cache.cross_attention
        elif call.encoder_output is not None:
            key_values = self._layer.cross_attention.key_values(call.encoder_output, None)
        else:
            raise DataError("encoder_output: cross-attention needs an encoder's output to attend to")
        memory, options = call.encoder_output, call.cross_attention
        return self._attended("cross_attention", inputs, memory, key_values, options, dropout=2)

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
        )
        attended = attention.attend(inputs, key_values, options)
        if call.probe is not None:
            read = memory if call.cache is None else None
            seen = Probe(slot, attention, inputs, attended, options.mask, call.query_mask, read)
            self.reports[slot] = call.probe(seen)
        return self._dropped(attention.combine(attended.context), dropout + 1)

    def _dropped(self, outputs: jax.Array, number: int) -> jax.Array:
        """Return a sub-layer's outputs after dropout, as they join the stream."""
        layer, call = self._config, self._call
        outputs = Dropout(layer.dropout, fold(call.key, number))(outputs)
        if call.key is None or layer.stochastic_depth == 0.0 or call.depth == 1:
            return outputs
        rate = layer.stochastic_depth * call.number / (call.depth - 1)
        return Dropout(rate, jax.random.fold_in(call.key, number + 6)).of_examples(outputs)
