"""The arrays that a user gives to an attention: checked, and brought to one axis of examples."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import ArgumentError
from headjax.nn.cache import AttentionCache
from headjax.nn.operands import Mask

LENGTHS = {"keys": "key", "query_segments": "query", "key_segments": "key", "query_positions": "query"}
LENGTHS |= {"key_positions": "key"}
"""Fields of a `Mask` that are arrays `[batch, length]`, and whose length it is."""


class CallArrays(NamedTuple):
    """The arrays of a call of `AttentionModule`, whose arguments they are; `batch` stands for any number of axes."""

    x: jax.Array  # [batch, query, width]
    memory: jax.Array | None  # [batch, key, memory_width]; None is x
    mask: Mask | None
    allowed: jax.Array | None  # a mask that is an array
    bias: jax.Array | None
    positions: jax.Array | None
    cache: AttentionCache | None
    dropout: jax.Array | None  # PRNG key; None where nothing is dropped


def require_room(used: jax.Array | int, new: int, capacity: int) -> None:
    """Raise `ArgumentError` where a cache is known to have no room for new tokens behind those used."""
    count = 0 if isinstance(used, jax.core.Tracer) else int(used)
    if count + new > capacity:
        raise ArgumentError(f"cache: holds {count} tokens of at most {capacity}, and {new} more do not fit")


def check_sizes(call: CallArrays, width: int, memory_width: int) -> None:
    """Raise `ArgumentError` for inputs of other sizes."""
    shape, other = call.x.shape, None if call.memory is None else call.memory.shape
    if len(shape) < 2 or shape[-1] != width:
        raise ArgumentError(f"x: shape {list(shape)}; expected [..., query, {width}]")
    if other is not None and (other[:-2] != shape[:-2] or other[-1] != memory_width):
        raise ArgumentError(f"memory: shape {list(other)}; expected {[*shape[:-2], 'key', memory_width]}")


def one_batch_axis(call: CallArrays, heads: int) -> CallArrays:
    """Return the arrays as `[batch or 1, ...]`, masks as conditions and a bias, and positions.

    Raises `ArgumentError` for an array that does not broadcast to its meaning, and for a full cache.
    """
    batch, queries, cache = call.x.shape[:-2], call.x.shape[-2], call.cache
    if not heads:  # which attend to nothing
        call = call._replace(mask=None, allowed=None, bias=None, positions=None)
    memory = call.x if call.memory is None else call.memory
    keys, positions, mask = memory.shape[-2], _flat("positions", call.positions, batch, queries), call.mask
    if cache is not None:
        cache = cache._replace(entries={name: _merged(array, batch) for name, array in cache.entries.items()})
        positions = cache.used + jnp.arange(queries)[None] if positions is None else positions
    if cache is not None and heads:  # queries count from the tokens in it, and see no place that no token has filled
        keys = cache.capacity
        require_room(cache.used, queries, keys)
        mask = Mask(causal=True) if mask is None else mask
        mask = (
            mask if mask.query_offset is not None else dataclasses.replace(mask, query_offset=jnp.asarray(cache.used))
        )
    bias, allowed = (_flat(name, getattr(call, name), batch, heads, queries, keys) for name in ("bias", "allowed"))
    if allowed is not None:
        hidden = float(np.finfo(np.float32).min)
        bias = jnp.where(allowed.astype(bool), 0.0 if bias is None else bias, hidden)
    if mask is not None:
        sizes = {"query": queries, "key": keys}
        fields: dict[str, Any] = {
            name: _flat(f"mask.{name}", getattr(mask, name), batch, sizes[of]) for name, of in LENGTHS.items()
        }
        mask = dataclasses.replace(mask, **fields)
        if cache is not None and not mask.causal:
            filled = jnp.arange(keys)[None] < cache.used + queries
            mask = dataclasses.replace(mask, keys=filled if mask.keys is None else mask.keys.astype(bool) & filled)
    read = None if call.memory is None else _merged(memory, batch)
    return CallArrays(_merged(call.x, batch), read, mask, None, bias, positions, cache, call.dropout)


def _merged(array: jax.Array, batch: tuple[int, ...]) -> jax.Array:
    """Return `[*batch, ...]` as `[examples, ...]`."""
    return array if len(batch) == 1 else array.reshape(math.prod(batch), *array.shape[len(batch) :])


def _flat(name: str, array: jax.Array | None, batch: tuple[int, ...], *sizes: int) -> jax.Array | None:
    """Return an array that broadcasts to `[*batch, *sizes]` as `[examples or 1, *sizes]`."""
    if array is None:
        return None
    target, axes = (*batch, *sizes), len(sizes)
    shape = (1,) * (len(target) - array.ndim) + array.shape
    if len(shape) != len(target) or any(size not in (1, most) for size, most in zip(shape, target, strict=True)):
        named = name if name != "allowed" else "mask"
        raise ArgumentError(f"{named}: shape {list(array.shape)} does not broadcast to {list(target)}")
    if math.prod(shape[:-axes]) == 1:
        return array.reshape(1, *shape[-axes:])
    return _merged(jnp.broadcast_to(array, (*batch, *shape[-axes:])), batch)
