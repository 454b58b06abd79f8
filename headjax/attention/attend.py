"""The one place with a softmax over keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from headjax.attention.mask import Mask
from headjax.errors import KernelError
from headjax.serialize import unknown_name


class Dropout(NamedTuple):
    """Dropout of attention probabilities: each is zeroed with probability `rate`, the rest scaled by 1 / (1 - rate)."""

    rate: float
    key: jax.Array


class AcrossHeads(NamedTuple):
    """Linear maps across heads on both sides of the softmax (Shazeer et al. 2020, Talking-Heads Attention).

    Attributes:
        logits: `[logit_heads, softmax_heads]`; the softmax is of sum_h logits_h P_hj, or None for the logits alone.
        weights: `[softmax_heads, heads]`; values are weighted by sum_j A_j R_jh, or None for A alone.
    """

    logits: jax.Array | None = None
    weights: jax.Array | None = None


class Attended(NamedTuple):
    """What attention computed.

    Attributes:
        context: `[batch, query, heads, value_dim]`, the gated sums of values.
        probabilities: `[batch, heads, query, key]` before dropout and gates, or None where the kernel never holds them.
            After a map across heads they are the weights of each value head, which need not sum to one.
    """

    context: jax.Array
    probabilities: jax.Array | None


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    scale: float,
    mask: Mask | None = None,
    bias: jax.Array | None = None,
    gates: jax.Array | None = None,
    dropout: Dropout | None = None,
    mixing: jax.Array | None = None,
    across_heads: AcrossHeads | None = None,
    implementation: str = "auto",
) -> Attended:
    """Scaled dot-product attention with head gates.

        A_h = softmax(scale * Q_h K_h^T + bias_h),   context_h = xi_h * A_h V_h

    The sum over heads of context_h W_O^h with gates xi is Michel et al. (2019), section 2.2; xi = 1 is the attention of
    Vaswani et al. (2017). Gating the context equals gating the probabilities, and no kernel has to know of it.

    Keys and values may have fewer heads than queries (grouped, multi-query, shared): head h of `heads` reads head
    h * key_heads // heads.

    Args:
        query: `[batch, query, heads, qk_dim]`.
        key: `[batch, key, key_heads, qk_dim]`, key_heads a divisor of heads.
        value: `[batch, key, value_heads, value_dim]`, value_heads a divisor of heads.
        scale: multiplies the dot products (1 / sqrt(head_dim) unless a conversion carries another).
        mask: which keys a query may see; a query that may see none attends to all evenly.
        bias: added to the scaled dot products, broadcastable to `[batch, heads, query, key]`.
        gates: `[heads]`, `[batch, heads]` or `[batch, query, heads]`; None is all ones.
        dropout: dropout of the probabilities, or None.
        mixing: `[heads, qk_dim]`; the query then has one head and head h's is query * mixing_h (collaborative
            attention), which a kernel may compute block by block.
        across_heads: maps of logits and weights across heads (talking heads). The value heads are then as many as
            the mixed weights have.
        implementation: a name in `IMPLEMENTATIONS`, or `auto`.

    Raises:
        KernelError: the named implementation is unknown or cannot do what is asked; the message says why.
    """
    name = "einsum" if implementation == "auto" else implementation
    if name not in IMPLEMENTATIONS:
        raise KernelError(f"attention implementation: {unknown_name('name', name, [*IMPLEMENTATIONS, 'auto'])}")
    if mixing is not None:
        query = query * mixing[None, None]
    if across_heads is None:
        for what, heads in (("key", key.shape[2]), ("value", value.shape[2])):
            if heads < 1 or query.shape[2] % heads:
                raise KernelError(f"{what} heads: {heads} does not divide the {query.shape[2]} query heads")
    attended = IMPLEMENTATIONS[name](
        query, key, value, scale=scale, mask=mask, bias=bias, dropout=dropout, across_heads=across_heads
    )
    return apply_gates(attended, gates)


def apply_gates(attended: Attended, gates: jax.Array | None) -> Attended:
    """The contexts times their gates, of any of `attend`'s shapes; None leaves them."""
    if gates is None:
        return attended
    return attended._replace(context=attended.context * expand_gates(gates).astype(attended.context.dtype))


def expand_gates(gates: jax.Array) -> jax.Array:
    """Gates of any of `attend`'s shapes, broadcastable to `[batch, query, heads, value_dim]`."""
    if gates.ndim == 3:
        return gates[..., None]
    return gates[:, None, :, None] if gates.ndim == 2 else gates[None, None, :, None]


def einsum_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    scale: float,
    mask: Mask | None,
    bias: jax.Array | None,
    dropout: Dropout | None,
    across_heads: AcrossHeads | None,
) -> Attended:
    """The reference: plain einsums, softmax in float32. It can do everything and holds every probability."""
    mix_logits, mix_weights = across_heads or AcrossHeads()
    logits = grouped_logits(query * jnp.asarray(scale, query.dtype), key)
    logits = _across(logits, mix_logits).astype(jnp.float32)
    if bias is not None:
        logits = logits + bias.astype(jnp.float32)
    allowed = None if mask is None else mask.array(query.shape[1], key.shape[1])
    if allowed is not None:
        logits = jnp.where(allowed, logits, jnp.finfo(jnp.float32).min)
    probabilities = jax.nn.softmax(logits, axis=-1)
    weights = probabilities.astype(value.dtype)
    if dropout is not None and dropout.rate > 0.0:
        kept = jax.random.bernoulli(dropout.key, 1.0 - dropout.rate, weights.shape)
        weights = jnp.where(kept, weights / (1.0 - dropout.rate), jnp.zeros((), weights.dtype))
    weights = _across(weights, mix_weights)
    batch, heads, queries, keys = weights.shape
    groups = value.shape[2]
    grouped = weights.reshape(batch, groups, heads // groups, queries, keys)
    context = jnp.einsum("bgrqk,bkgv->bqgrv", grouped, value)
    return Attended(
        context.reshape(batch, queries, heads, value.shape[-1]),
        _across(probabilities, mix_weights),
    )


def _across(maps: jax.Array, mixing: jax.Array | None) -> jax.Array:
    return maps if mixing is None else jnp.einsum("bhqk,hj->bjqk", maps, mixing.astype(maps.dtype))


def grouped_logits(query: jax.Array, key: jax.Array) -> jax.Array:
    """`[batch, query, heads, dim]` times `[batch, key, key_heads, dim]`: dot products `[batch, heads, query, key]`."""
    batch, length, heads, dim = query.shape
    groups = key.shape[2]
    grouped = query.reshape(batch, length, groups, heads // groups, dim)
    return jnp.einsum("bqgrd,bkgd->bgrqk", grouped, key).reshape(batch, heads, length, key.shape[1])


def default_scale(head_dim: int) -> float:
    """1 / sqrt(head_dim)."""
    return 1.0 / math.sqrt(head_dim)


IMPLEMENTATIONS: dict[str, Callable[..., Attended]] = {"einsum": einsum_attention}
"""Attention implementations by name."""
