"""The decoding cache: keys and values of the tokens seen so far, so that each new token costs one query."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from headjax.nn.attend import heads_first
from headjax.nn.calling import require_room
from headjax.nn.operands import KeyValues


class LayerCache(NamedTuple):
    """The cache of one layer, or with a leading axis of layers that of a group.

    Attributes:
        attention: keys and values of the self-attention as `stored` orders them, `[batch, capacity, ...]` or
            `[batch, heads, capacity, size]`, of which the first `used` tokens are filled.
        cross_attention: keys and values of the encoder output, which never change; None without cross-attention.
    """

    attention: KeyValues
    cross_attention: KeyValues | None = None


GroupCache = LayerCache | list[LayerCache]
"""The caches of a group's layers: stacked where it is scanned, else each layer's own, which can be written in place."""


class Cache(NamedTuple):
    """The cache of one stack.

    A token has the same index in all examples, padding included, so that all examples have equal shapes. `present`
    marks padding, and `positions` holds the tokens' positions, which a batch may give itself.

    Attributes:
        layers: caches by name of the layer group.
        positions: `[batch, capacity]` position of each token.
        present: `[batch, capacity]` bool, False at padding and where no token is yet.
        used: number of tokens in the cache, padding included: a scalar, or the number 0 of a cache that a program
            itself made, so that new tokens need not look into it.
    """

    layers: dict[str, GroupCache]
    positions: jax.Array
    present: jax.Array
    used: jax.Array | int

    def next_positions(self, present: jax.Array) -> jax.Array:
        """Return `[batch, new]` positions of new tokens, of which `present [batch, new]` are no padding.

        Positions continue from that of the last token that is no padding, and from 0 in an empty cache.
        """
        indices = jnp.arange(self.present.shape[1])
        last = jnp.argmax(jnp.where(self.present, indices, -1), axis=1)[:, None]
        reached = jnp.where(
            self.present.any(axis=1, keepdims=True), jnp.take_along_axis(self.positions, last, axis=1), -1
        )
        return jnp.maximum(reached + jnp.cumsum(present, axis=1), 0)

    def indices(self) -> jax.Array:
        """Return `[batch, capacity]` numbers of the tokens, counted from 0 without padding."""
        return jnp.maximum(jnp.cumsum(self.present, axis=1) - 1, 0)

    def admit(self, positions: jax.Array, present: jax.Array) -> Cache:
        """Return the cache with new tokens' `[batch, new]` positions and presence, before their keys are known."""
        require_room(self.used, present.shape[1], self.present.shape[1])
        positions = jnp.broadcast_to(positions, present.shape)
        return self._replace(
            positions=write(self.positions, positions.astype(self.positions.dtype), self.used),
            present=write(self.present, present, self.used),
        )

    def take(self, rows: jax.Array) -> Cache:
        """Return the cache of these examples, in this order; an example may be taken several times."""
        return Cache(
            layers={name: _take(layers, rows) for name, layers in self.layers.items()},
            positions=jnp.take(self.positions, rows, axis=0),
            present=jnp.take(self.present, rows, axis=0),
            used=self.used,
        )

    def reorder(self, rows: jax.Array) -> Cache:
        """Return the cache of these examples, each with the same source as the one whose row it takes."""
        taken = self.take(rows)
        return taken._replace(
            layers={name: _same_source(taken.layers[name], self.layers[name]) for name in taken.layers}
        )


def _take(layers: GroupCache, rows: jax.Array) -> GroupCache:
    axis = 0 if isinstance(layers, list) else 1
    return jax.tree.map(lambda array: jnp.take(array, rows, axis=axis), layers)


def _same_source(taken: GroupCache, before: GroupCache) -> GroupCache:
    """Return the caches as they were taken, with the cross-attention's keys and values of before."""
    if isinstance(taken, list) and isinstance(before, list):
        kept = zip(taken, before, strict=True)
        return [one._replace(cross_attention=other.cross_attention) for one, other in kept]
    return cast(LayerCache, taken)._replace(cross_attention=cast(LayerCache, before).cross_attention)


def is_empty(used: jax.Array | int) -> bool:
    """Return whether a cache of `used` tokens is known to be empty while its program is traced."""
    return isinstance(used, int) and used == 0


def stored(array: jax.Array) -> jax.Array:
    """Return keys or values `[batch, tokens, heads, size]` in a cache's order, or back in theirs.

    Where attention multiplies matrices `[heads, tokens, size]` a cache has that order, so that no token transposes it:
    the reads' two swaps of axes cancel. Arrays without an axis of heads stay.
    """
    return jnp.swapaxes(array, 1, 2) if _swapped(array) else array


def append(entries: jax.Array, new: jax.Array, used: jax.Array | int) -> jax.Array:
    """Return `entries`, in a cache's order, with the keys or values of new tokens in place from index `used` on."""
    axis = 2 if _swapped(new) else 1
    added, units = stored(new).astype(entries.dtype), tuple(unit for unit in _units(entries) if unit != axis)
    axis -= sum(unit < axis for unit in units)
    written = jax.lax.dynamic_update_slice_in_dim(jnp.squeeze(entries, units), jnp.squeeze(added, units), used, axis)
    return jnp.expand_dims(written, units)


def without_units(layers: dict[str, GroupCache]) -> Any:
    """Return the caches without axes of size 1, as a loop over tokens should carry them.

    XLA drops such axes from products of matrices. Where a loop carries them, it then writes a cache twice, in both
    shapes, and copies it four times a token.
    """
    return jax.tree.map(lambda array: jnp.squeeze(array, _units(array)), layers)


def with_units(carried: Any, layers: dict[str, GroupCache]) -> dict[str, GroupCache]:
    """Return carried caches in the shapes of `layers`."""
    restored: dict[str, GroupCache] = jax.tree.map(lambda array, like: array.reshape(like.shape), carried, layers)
    return restored


def _units(array: jax.Array) -> tuple[int, ...]:
    """Return the axes of size 1."""
    return tuple(axis for axis, size in enumerate(array.shape) if size == 1)


def _swapped(array: jax.Array) -> bool:
    return array.ndim == 4 and heads_first()


def write(entries: jax.Array, new: jax.Array, used: jax.Array | int) -> jax.Array:
    """Return `entries [batch, capacity, ...]` with `new [batch, new, ...]` in place from index `used` on."""
    return jax.lax.dynamic_update_slice_in_dim(entries, new.astype(entries.dtype), used, axis=1)


class DecodingState(NamedTuple):
    """Everything a model remembers of one batch between tokens.

    Attributes:
        cache: the decoder's cache.
        source: `[batch, key]` bool, False at the source's padding; None without cross-attention or padding.
    """

    cache: Cache
    source: jax.Array | None = None

    def take(self, rows: jax.Array) -> DecodingState:
        """Return the state of these examples, in this order; an example may be taken several times."""
        return DecodingState(self.cache.take(rows), None if self.source is None else self.source[rows])

    def reorder(self, rows: jax.Array) -> DecodingState:
        """Return the state of these examples, each with the same source as the one whose row it takes."""
        return self._replace(cache=self.cache.reorder(rows))


class Prompt(NamedTuple):
    """The tokens that generation continues.

    Attributes:
        tokens: `[batch, length]`.
        present: `[batch, length]` bool, False at padding, on whichever side.
        state: a state that has seen none of them.
        positions: `[batch or 1, length]` that the batch gives them; None counts from 0 without padding.
    """

    tokens: jax.Array
    present: jax.Array
    state: DecodingState
    positions: jax.Array | None = None
