"""One forward pass: what it is told, and what may look at it or take part in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from headjax.nn.compute import Compute
from headjax.nn.operands import Attended, Mask
from headjax.nn.residuals import Residual


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


class Joining(NamedTuple):
    """A sub-layer f about to join the residual stream."""

    slot: str  # `attention`, `cross_attention` or `feed_forward`
    residual: Residual
    x: jax.Array  # [batch, length, width], the stream
    read: jax.Array  # the stream that f reads: x, or in a parallel layer what enters the layer
    f: Callable[[jax.Array], jax.Array]  # to the same shape, dropout included
    mask: jax.Array | None  # [batch, length] bool, False at padding; None without padding


class Pass(NamedTuple):
    """Everything about one forward pass that is neither parameter nor batch, and what its stack reads of the batch."""

    key: jax.Array | None = None  # PRNG key of dropout; None outside training
    probe: ProbeFunction | None = None
    compute: Compute = Compute()
    join: Callable[[Joining], jax.Array] | None = None  # how a sub-layer joins the stream; None is as its residual does
    mask: Mask | None = None  # which keys each query of the self-attention may see
    positions: jax.Array | None = None  # [batch or 1, length]; None counts from 0
    bias: jax.Array | None = None  # [batch or 1, heads, query, key], position bias of the self-attention's logits
    memory: jax.Array | None = None  # [batch, key, width], an encoder's output, for cross-attention
    memory_mask: Mask | None = None  # which of its keys each query may see
    query_mask: jax.Array | None = None  # [batch, length] bool, False at padding; None without padding
    used: jax.Array | int = 0  # tokens in the cache, when decoding
