"""The reference kernel: plain einsums, which can do everything and hold every probability."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from headjax.attention.attended import AcrossHeads, Attended, Dropout
from headjax.attention.kernels.choose import current_target
from headjax.attention.mask import Mask
from headjax.core.derivatives import softmax
from headjax.mesh.random_bits import dropped


def attend(
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
    """softmax(scale * Q K^T + bias) V with the softmax in float32; see `headjax.attention.attend` for the shapes."""
    mix_logits, mix_weights = across_heads or AcrossHeads()
    logits = grouped_logits(query * jnp.asarray(scale, query.dtype), key)
    logits = _across(logits, mix_logits).astype(jnp.float32)
    if bias is not None:
        logits = logits + bias.astype(jnp.float32)
    allowed = None if mask is None else mask.array(query.shape[1], key.shape[1])
    if allowed is not None:
        logits = jnp.where(allowed, logits, jnp.finfo(jnp.float32).min)
    probabilities = softmax(logits)
    weights = probabilities.astype(value.dtype)
    if dropout is not None and dropout.rate > 0.0:
        weights = dropped(weights, dropout.key, dropout.rate, split=1)
    weights = _across(weights, mix_weights)
    return Attended(weighted_values(weights, value), _across(probabilities, mix_weights))


def grouped_logits(query: jax.Array, key: jax.Array) -> jax.Array:
    """`[batch, query, heads, dim]` times `[batch, key, key_heads, dim]`: dot products `[batch, heads, query, key]`."""
    batch, length, heads, dim = query.shape
    keys, groups = key.shape[1:3]
    if heads_first():
        rows = jnp.swapaxes(query, 1, 2).reshape(batch, groups, heads // groups * length, dim)
        return jnp.einsum("bgqd,bgkd->bgqk", rows, jnp.swapaxes(key, 1, 2)).reshape(batch, heads, length, keys)
    grouped = query.reshape(batch, length, groups, heads // groups, dim)
    return jnp.einsum("bqgrd,bkgd->bgrqk", grouped, key).reshape(batch, heads, length, keys)


def weighted_values(weights: jax.Array, value: jax.Array) -> jax.Array:
    """`[batch, heads, query, key]` times `[batch, key, value_heads, dim]`: contexts `[batch, query, heads, dim]`."""
    batch, heads, queries, keys = weights.shape
    groups, dim = value.shape[2:]
    if heads_first():
        rows = weights.reshape(batch, groups, heads // groups * queries, keys)
        context = jnp.einsum("bgqk,bgkv->bgqv", rows, jnp.swapaxes(value, 1, 2))
        return jnp.swapaxes(context.reshape(batch, heads, queries, dim), 1, 2)
    grouped = weights.reshape(batch, groups, heads // groups, queries, keys)
    return jnp.einsum("bgrqk,bkgv->bqgrv", grouped, value).reshape(batch, queries, heads, dim)


def heads_first() -> bool:
    """Whether products are of matrices `[batch, heads, length, dim]`, which takes less time on CPUs (5 to 10% of them).

    TPUs and GPUs get the products of arrays as they come, since their compilers choose layouts themselves.
    """
    return current_target().platform == "cpu"


def _across(maps: jax.Array, mixing: jax.Array | None) -> jax.Array:
    return maps if mixing is None else jnp.einsum("bhqk,hj->bjqk", maps, mixing.astype(maps.dtype))
