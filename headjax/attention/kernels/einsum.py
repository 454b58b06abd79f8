"""The reference kernel: plain einsums, which can do everything and hold every probability."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from headjax.attention.attended import AcrossHeads, Attended, Dropout
from headjax.attention.mask import Mask
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
    probabilities = jax.nn.softmax(logits, axis=-1)
    weights = probabilities.astype(value.dtype)
    if dropout is not None and dropout.rate > 0.0:
        weights = dropped(weights, dropout.key, dropout.rate, split=1)
    weights = _across(weights, mix_weights)
    batch, heads, queries, keys = weights.shape
    groups = value.shape[2]
    grouped = weights.reshape(batch, groups, heads // groups, queries, keys)
    context = jnp.einsum("bgrqk,bkgv->bqgrv", grouped, value)
    return Attended(
        context.reshape(batch, queries, heads, value.shape[-1]),
        _across(probabilities, mix_weights),
    )


def grouped_logits(query: jax.Array, key: jax.Array) -> jax.Array:
    """`[batch, query, heads, dim]` times `[batch, key, key_heads, dim]`: dot products `[batch, heads, query, key]`."""
    batch, length, heads, dim = query.shape
    groups = key.shape[2]
    grouped = query.reshape(batch, length, groups, heads // groups, dim)
    return jnp.einsum("bqgrd,bkgd->bgrqk", grouped, key).reshape(batch, heads, length, key.shape[1])


def _across(maps: jax.Array, mixing: jax.Array | None) -> jax.Array:
    return maps if mixing is None else jnp.einsum("bhqk,hj->bjqk", maps, mixing.astype(maps.dtype))
