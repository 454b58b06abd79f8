"""A Transformer layer: attention, optional cross-attention and feed-forward, each with its residual connection."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.core.errors import DataError
from headjax.core.kind import Kind
from headjax.mesh.mesh import by_example
from headjax.nn.attend import Call
from headjax.nn.cache import LayerCache, append, stored
from headjax.nn.feed_forward import ActivationName, FeedForward, fold
from headjax.nn.norms import LayerNorm, Norm
from headjax.nn.operands import Dropout, Mask
from headjax.nn.passes import Joining, Pass, Probe
from headjax.nn.residuals import Residual, ResidualKind

CACHE = "cache"
"""Key under which a decoding layer reports the keys and values of its self-attention, beside the probe's results."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """The sizes and options of one layer, as its family's config gives them."""

    width: int  # of the residual stream
    attention: Kind
    hidden: int  # units of the feed-forward
    cross_attention: Kind | None = None  # attention to an encoder's output
    activation: ActivationName = "gelu"  # see `FeedForward`, as `gated` and `feed_forward_bias`
    gated: bool = False
    feed_forward_bias: bool = True
    residual: ResidualKind = "post_norm"  # see `Residual`, as `norm` and `alpha`
    norm: Norm = LayerNorm()
    alpha: float = 1.0
    dropout: float = 0.0  # on each sub-layer's output
    attention_dropout: float = 0.0  # on attention probabilities
    feed_forward_dropout: float = 0.0  # on the inner feed-forward activations
    # Rate at which an example skips a sub-layer of the stack's last layer in training; rates grow evenly from 0 at the
    # first layer (Huang et al. 2016; DeiT).
    stochastic_depth: float = 0.0
    attention_softcap: float | None = None  # of the self-attention's logits, see `Call`
    window: int | None = None  # self-attention sees only keys at a distance below this, before and after
    attention_norm: bool = True  # whether `norm` stands before self-attention too, where it does before sub-layers
    depth: int = 1  # number of layers of the stack

    @functools.cached_property
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
    """The module of a `Layer`: its sub-layers, and the residual connection of each, `attention_residual` and so on."""

    def __init__(self, config: Layer) -> None:
        self.config, self.slots, width = config, config.slots, config.width
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
        self,
        x: jax.Array,
        call: Pass,
        number: jax.Array | int = 0,
        columns: jax.Array | None = None,
        cache: LayerCache | None = None,
    ) -> tuple[jax.Array, dict[str, Any]]:
        """Return the layer's output `[batch, length, width]` and its reports.

        The number is that in its stack, the `columns [heads]` are its heads' places in the position bias.
        """
        call, reports = call._replace(key=fold(call.key, number)), dict[str, Any]()
        if columns is not None and call.bias is not None:
            call = call._replace(bias=jnp.take(call.bias, columns, axis=1))
        entered = x = by_example(x)
        for slot in self.slots:
            read = entered if self.config.residual == "parallel_norm" else x
            f = functools.partial(self.sub_layer, slot, call, number, cache, reports)
            residual = getattr(self, f"{slot}_residual")
            if call.join is None:
                x = residual.join(x, f(residual.enter(read)))
            else:
                x = call.join(Joining(slot, residual, x, read, f, call.query_mask))
        return by_example(x), reports

    def sub_layer(
        self,
        slot: str,
        call: Pass,
        number: jax.Array | int,
        cache: LayerCache | None,
        reports: dict[str, Any],
        inputs: jax.Array,
    ) -> jax.Array:
        """Return the outputs of a sub-layer `[batch, length, width]`, after dropout."""
        config, key = self.config, call.key
        if slot == "feed_forward":
            outputs, place = self.feed_forward(inputs, Dropout(config.feed_forward_dropout, fold(key, 4))), 5
        else:
            outputs, place = self._attended(slot, call, cache, reports, inputs), 1 if slot == "attention" else 3
        outputs = Dropout(config.dropout, fold(key, place))(outputs)
        if key is None or config.stochastic_depth == 0.0 or config.depth == 1:
            return outputs
        rate = config.stochastic_depth * number / (config.depth - 1)
        return Dropout(rate, jax.random.fold_in(key, place + 6)).of_examples(outputs)

    def _attended(
        self, slot: str, call: Pass, cache: LayerCache | None, reports: dict[str, Any], inputs: jax.Array
    ) -> jax.Array:
        """Return the outputs of an attention; report the probe's results, and the keys and values for the cache."""
        attention, config, crossed = getattr(self, slot), self.config, slot == "cross_attention"
        read, mask = (call.memory, call.memory_mask) if crossed else (inputs, call.mask)
        if not crossed:
            key_values = attention.key_values(inputs, call.positions)
            if cache is not None:
                held = cache.attention
                held = {name: append(held[name], array, call.used) for name, array in key_values.items()}
                reports[CACHE] = held
                if not isinstance(call.used, int):  # a cache that is known to be empty holds none before
                    key_values = {name: stored(array) for name, array in held.items()}
            if config.window is not None:
                mask = dataclasses.replace(mask or Mask(), window=config.window)
        elif cache is not None and cache.cross_attention is not None:
            key_values = cache.cross_attention
        elif read is not None:
            key_values = attention.key_values(read, None)
        else:
            raise DataError("memory: cross-attention needs an encoder's output to attend to")
        options = Call(
            mask=mask,
            bias=None if crossed else call.bias,
            dropout=Dropout(config.attention_dropout, fold(call.key, 2 if crossed else 0)),
            positions=call.positions,
            probabilities=call.probe is not None,
            implementation=call.compute.attention,
            queries=call.query_mask,
            softcap=None if crossed else config.attention_softcap,
        )
        attended = attention.attend(inputs, key_values, options)
        if call.probe is not None:
            read = read if cache is None else None
            reports[slot] = call.probe(Probe(slot, attention, inputs, attended, mask, call.query_mask, read))
        outputs: jax.Array = attention.combine(attended.context)
        return outputs
