"""Exact changes that make a call fit a kernel: zero-padded sizes, repeated heads, masks as segments."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from headjax.attention.mask import Mask

BLOCK = 128
"""Width of a TPU vector register: lengths of blocks are multiples of it."""


def pad_axis(array: jax.Array, axis: int, size: int) -> jax.Array:
    """The array with zeros appended along one axis up to a size."""
    missing = size - array.shape[axis]
    if missing == 0:
        return array
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, missing)
    return jnp.pad(array, widths)


def round_up(size: int, multiple: int) -> int:
    """The smallest multiple that is not below the size."""
    return -(-size // multiple) * multiple


def equal_kv_heads(key: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Keys and values with as many heads each, the fewer repeated: head i of few serves consecutive heads of many."""
    heads = max(key.shape[2], value.shape[2])
    return _repeat_heads(key, heads), _repeat_heads(value, heads)


def _repeat_heads(array: jax.Array, heads: int) -> jax.Array:
    return array if array.shape[2] == heads else jnp.repeat(array, heads // array.shape[2], axis=2)


def segment_ids(mask: Mask, batch: int, queries: int, keys: int) -> tuple[jax.Array, jax.Array]:
    """`[batch, query]` and `[batch, key]` integers that are equal exactly where padding and packing allow attention.

    Padding keys get -1, which is no query's.
    """
    if mask.query_segments is None or mask.key_segments is None:
        of_queries, of_keys = jnp.zeros((batch, queries), jnp.int32), jnp.zeros((batch, keys), jnp.int32)
    else:
        of_queries, of_keys = mask.query_segments.astype(jnp.int32), mask.key_segments.astype(jnp.int32)
    if mask.keys is not None:
        of_keys = jnp.where(mask.keys.astype(bool), of_keys, -1)
    return of_queries, of_keys
