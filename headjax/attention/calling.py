"""One call of an attention module: its arrays compared with their meaning, and brought to one axis of examples."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.attention.operands import KeyValues, Mask
from headjax.core.errors import ArgumentError

LENGTHS = {"keys": "key", "query_segments": "query", "key_segments": "key", "query_positions": "query"}
LENGTHS |= {"key_positions": "key"}
"""Fields of a `Mask` that are arrays `[batch, length]`, and whose length it is."""


class AttentionCache(NamedTuple):
    """Keys and values (or the arrays they are computed from) of the tokens that a layer has seen.

    Attributes:
        entries: `[batch, capacity, ...]` each.
        used: number of tokens in the cache, a scalar.
    """

    entries: KeyValues
    used: jax.Array


class ModuleCall(NamedTuple):
    """The arrays of a call of `AttentionModule`, whose arguments they are.

    Attributes:
        inputs: `[batch, query, width]`.
        attended_to: `[batch, key, memory_width]`; None is the inputs.
        mask: conditions, the cache's and `is_causal` among them.
        allowed: a mask that is an array.
        bias, positions, cache: as there.
        dropout: PRNG key, None where nothing is dropped.
    """

    inputs: jax.Array
    attended_to: jax.Array | None
    mask: Mask | None
    allowed: jax.Array | None
    bias: jax.Array | None
    positions: jax.Array | None
    cache: AttentionCache | None
    dropout: jax.Array | None

    @property
    def batch(self) -> tuple[int, ...]:
        """Sizes of the axes of examples."""
        return self.inputs.shape[:-2]

    @property
    def queries(self) -> int:
        """Number of queries."""
        return self.inputs.shape[-2]

    @property
    def keys(self) -> int:
        """Number of keys: the capacity of the cache, where there is one."""
        if self.cache is not None:
            axis = len(self.batch)
            return next((array.shape[axis] for array in self.cache.entries.values()), self.queries)
        return (self.inputs if self.attended_to is None else self.attended_to).shape[-2]


def conditions(mask: Mask | None, is_causal: bool, cache: AttentionCache | None) -> Mask | None:
    """Return the mask with what a cache and `is_causal` add to it: queries count from the tokens in the cache."""
    if cache is not None:
        mask = Mask(causal=True) if mask is None else mask
        mask = mask if mask.query_offset is not None else dataclasses.replace(mask, query_offset=cache.used)
    return dataclasses.replace(mask or Mask(), causal=True) if is_causal else mask


def check_call(call: ModuleCall, width: int, memory_width: int, heads: int) -> None:
    """Raise `ArgumentError` for an array whose shape does not fit, or a cache that is known to have no room."""
    shape, batch = call.inputs.shape, call.batch
    if len(shape) < 2 or shape[-1] != width:
        raise ArgumentError(f"inputs: shape {list(shape)}; expected [..., query, {width}]")
    other = None if call.attended_to is None else call.attended_to.shape
    if other is not None and (other[:-2] != batch or other[-1] != memory_width):
        raise ArgumentError(f"attended_to: shape {list(other)}; expected {[*batch, 'key', memory_width]}")
    if heads == 0:
        return  # whatever the keys, nothing is attended to, and a cache holds nothing
    queries, keys = call.queries, call.keys
    logits, per_length = (*batch, heads, queries, keys), {"query": (*batch, queries), "key": (*batch, keys)}
    _require_fit("mask", call.allowed, logits)
    _require_fit("bias", call.bias, logits)
    _require_fit("positions", call.positions, per_length["query"])
    for name, length in LENGTHS.items():
        _require_fit(f"mask.{name}", getattr(call.mask, name, None), per_length[length])
    if call.cache is not None:
        require_room(call.cache.used, queries, keys)


def require_room(used: jax.Array | int, new: int, capacity: int) -> None:
    """Raise `ArgumentError` where a cache is known to have no room for new tokens behind those used."""
    known = 0 if isinstance(used, jax.core.Tracer) else int(used)
    if known + new > capacity:
        raise ArgumentError(f"cache: holds {known} tokens of at most {capacity}, and {new} more do not fit")


def _require_fit(name: str, array: jax.Array | None, shape: tuple[int, ...]) -> None:
    if array is None:
        return
    own = (1,) * (len(shape) - array.ndim) + array.shape
    if len(own) != len(shape) or any(size not in (1, wanted) for size, wanted in zip(own, shape, strict=True)):
        raise ArgumentError(f"{name}: shape {list(array.shape)} does not broadcast to {list(shape)}")


def one_batch_axis(call: ModuleCall) -> ModuleCall:
    """Return the call with arrays `[batch or 1, ...]`, its masks as conditions and a bias, and with positions."""
    batch, cache, mask, bias = call.batch, call.cache, call.mask, call.bias
    if call.allowed is not None:
        hidden = float(np.finfo(np.float32).min)
        bias = jnp.where(call.allowed.astype(bool), 0.0 if bias is None else bias, hidden)
    if mask is not None:
        fields: dict[str, Any] = {name: _flat(getattr(mask, name), batch, 1) for name in LENGTHS}
        mask = dataclasses.replace(mask, **fields)
    positions = _flat(call.positions, batch, 1)
    if cache is not None:
        cache = cache._replace(entries={name: _merged(array, batch) for name, array in cache.entries.items()})
        if positions is None:
            positions = cache.used + jnp.arange(call.queries)[None]
        if mask is not None and not mask.causal and cache.entries:  # no query sees places that no token has filled
            filled = jnp.arange(call.keys)[None] < cache.used + call.queries
            mask = dataclasses.replace(mask, keys=filled if mask.keys is None else mask.keys.astype(bool) & filled)
    return call._replace(
        inputs=_merged(call.inputs, batch),
        attended_to=None if call.attended_to is None else _merged(call.attended_to, batch),
        mask=mask,
        allowed=None,
        bias=_flat(bias, batch, 3),
        positions=positions,
        cache=cache,
    )


def _merged(array: jax.Array, batch: tuple[int, ...]) -> jax.Array:
    """Return `[*batch, ...]` as `[examples, ...]`."""
    return array if len(batch) == 1 else array.reshape(math.prod(batch), *array.shape[len(batch) :])


def _flat(array: jax.Array | None, batch: tuple[int, ...], own: int) -> jax.Array | None:
    """Return an array that broadcasts to `[*batch, ...]`, its batch flat, `own` axes behind it."""
    if array is None:
        return None
    shape = ((1,) * (own - array.ndim) + array.shape)[-own:]
    if math.prod(array.shape[:-own]) == 1:
        return array.reshape(1, *shape)
    return _merged(jnp.broadcast_to(array, (*batch, *shape)), batch)
