"""The decoding cache: keys and values of the tokens seen so far, so that each new token costs one query."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from headjax.nn.operands import KeyValues


class AttentionCache(NamedTuple):
    """Keys and values (or the arrays they are computed from) of the tokens that an attention has seen."""

    entries: KeyValues  # as `stored` orders them: [batch, heads, capacity, size], or [batch, capacity, ...]
    used: jax.Array | int  # number of tokens in it; the number 0 where a program itself made it empty

    @property
    def capacity(self) -> int:
        """Number of tokens that it has room for, with one axis of examples."""
        array = next(iter(self.entries.values()))
        return array.shape[2 if array.ndim == 4 else 1]

    def append(self, new: KeyValues, count: int) -> AttentionCache:
        """Return the cache with the keys and values `[batch, count, ...]` of new tokens behind those in it."""
        entries = {name: append(self.entries[name], array, self.used) for name, array in new.items()}
        return AttentionCache(entries, self.used + count)

    def key_values(self) -> KeyValues:
        """Return the keys and values of all places `[batch, capacity, ...]`."""
        return {name: stored(array) for name, array in self.entries.items()}


class LayerCache(NamedTuple):
    """The keys and values that one layer remembers."""

    attention: KeyValues  # the entries of an `AttentionCache`
    cross_attention: KeyValues | None = None  # of the encoder's output, which never change


class Cache(NamedTuple):
    """All that a decoder remembers of a batch between tokens.

    A token has the same index in all examples, padding included, so that all examples have equal shapes. `present`
    marks padding, and `positions` holds the tokens' positions, which a batch may give itself.
    """

    layers: list[LayerCache]  # each layer's own, which can be written in place
    positions: jax.Array  # [batch, capacity]
    present: jax.Array  # [batch, capacity] bool, False at padding and where no token is yet
    used: jax.Array | int  # tokens in it, padding included; the number 0 where a program itself made it empty
    source: jax.Array | None = None  # [batch, key] bool, False at the source's padding; None without

    def next_positions(self, present: jax.Array) -> jax.Array:
        """Return `[batch, new]` positions of new tokens, from that of the last that is no padding on, or from 0."""
        indices = jnp.arange(self.present.shape[1])
        last = jnp.argmax(jnp.where(self.present, indices, -1), axis=1)[:, None]
        reached = jnp.where(
            self.present.any(axis=1, keepdims=True), jnp.take_along_axis(self.positions, last, axis=1), -1
        )
        return jnp.maximum(reached + jnp.cumsum(present, axis=1), 0)

    def repeat(self, times: int) -> Cache:
        """Return the cache of a batch in which every example is there so many times, one after another."""
        return jax.tree.map(lambda array: jnp.repeat(array, times, axis=0) if jnp.ndim(array) else array, self)

    def reorder(self, rows: jax.Array) -> Cache:
        """Return the cache of these examples, each with the same source as the one whose row it takes."""
        arrays = [layer.attention for layer in self.layers], self.positions, self.present
        entries, positions, present = jax.tree.map(lambda array: jnp.take(array, rows, axis=0), arrays)
        layers = [layer._replace(attention=new) for layer, new in zip(self.layers, entries, strict=True)]
        return self._replace(layers=layers, positions=positions, present=present)


def stored(array: jax.Array) -> jax.Array:
    """Return keys or values `[batch, tokens, heads, size]` with heads first, as attention reads them, or back."""
    return jnp.swapaxes(array, 1, 2) if array.ndim == 4 else array


def append(entries: jax.Array, new: jax.Array, used: jax.Array | int) -> jax.Array:
    """Return `entries`, in a cache's order, with the keys or values of new tokens in place from index `used` on."""
    axis = 2 if new.ndim == 4 else 1
    added, units = stored(new).astype(entries.dtype), tuple(unit for unit in _units(entries) if unit != axis)
    axis -= sum(unit < axis for unit in units)
    written = jax.lax.dynamic_update_slice_in_dim(jnp.squeeze(entries, units), jnp.squeeze(added, units), used, axis)
    return jnp.expand_dims(written, units)


def without_units(layers: list[LayerCache]) -> Any:
    """Return the caches without axes of size 1, as a loop over tokens should carry them."""
    # XLA drops such axes from products of matrices. Where a loop carries them, it then writes a cache twice, in both
    # shapes, and copies it four times a token.
    return jax.tree.map(lambda array: jnp.squeeze(array, _units(array)), layers)


def with_units(carried: Any, layers: list[LayerCache]) -> list[LayerCache]:
    """Return carried caches in the shapes of `layers`."""
    restored: list[LayerCache] = jax.tree.map(lambda array, like: array.reshape(like.shape), carried, layers)
    return restored


def _units(array: jax.Array) -> tuple[int, ...]:
    """Return the axes of size 1."""
    return tuple(axis for axis, size in enumerate(array.shape) if size == 1)


class Prompt(NamedTuple):
    """The tokens that generation continues."""

    tokens: jax.Array  # [batch, length]
    present: jax.Array  # [batch, length] bool, False at padding, on whichever side
    cache: Cache  # has seen none of them
    positions: jax.Array  # [batch or 1, length]
