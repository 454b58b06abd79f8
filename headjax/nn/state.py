"""What flows through a model: the state that layers hand on, the options of a forward pass, and what watches it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from headjax.nn.compute import Compute
from headjax.nn.feed_forward import fold
from headjax.nn.operands import Attended, Mask
from headjax.nn.residuals import Residual


class State(NamedTuple):
    """The residual stream, and what the layers of a stack read besides."""

    x: jax.Array  # [batch, length, width], the residual stream
    memory: jax.Array | None = None  # [batch, key, width], output of the stack before, for cross-attention
    bias: jax.Array | None = None  # [1 or batch, heads, query, key], position bias of the self-attention's logits
    batch: Mapping[str, Any] = {}
    mask: Mask | None = None  # which keys each query of the self-attention may see
    positions: jax.Array | None = None  # [batch or 1, length]; None counts from 0
    query_mask: jax.Array | None = None  # [batch, length] bool, False at padding; None without padding
    memory_mask: Mask | None = None  # which keys of the memory each query may see


class Probe(NamedTuple):
    """One attention call as a probe function sees it."""

    slot: str  # `attention` or `cross_attention`
    module: Any  # the attention
    inputs: jax.Array  # [batch, query, width], from which queries are computed
    attended: Attended
    mask: Mask | None  # which keys each query may see
    query_mask: jax.Array | None  # [batch, query] bool, False at padding; None without padding
    memory_inputs: jax.Array | None = None  # [batch, key, width], keys and values of these; None with a cache


ProbeFunction = Callable[[Probe], Any]
"""Reduces one attention call to the statistics wanted; stacked over layers by the model."""


class ResidualStep(NamedTuple):
    """A sub-layer f about to join the residual stream."""

    slot: str  # `attention`, `cross_attention` or `feed_forward`
    residual: Residual
    x: jax.Array  # [batch, length, width], the stream
    read: jax.Array  # the stream that f reads: x, or in a parallel layer what enters the layer
    f: Callable[[jax.Array], jax.Array]  # to the same shape, dropout included
    mask: jax.Array | None  # [batch, length] bool, False at padding; None without padding


class ForwardOptions(NamedTuple):
    """How a forward pass is computed, and what watches it: everything that is neither parameter nor batch."""

    key: jax.Array | None = None  # PRNG key of dropout; None outside training
    probe: ProbeFunction | None = None
    compute: Compute = Compute()
    join: Callable[[ResidualStep], jax.Array] | None = None  # in place of the residual connections

    def of_stack(self, number: int) -> ForwardOptions:
        """Return the options of a model's stack, by its number from 0, whose dropout has a key of its own."""
        return self._replace(key=fold(self.key, 1 + 2 * number))
