"""The decoding cache: keys and values of the tokens seen so far, so that each new token costs one query."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from headjax.attention.formulation import KeyValues


class LayerCache(NamedTuple):
    """The cache of one layer, or with a leading axis of layers that of a group.

    Attributes:
        attention: keys and values of the self-attention, `[batch, capacity, ...]` each, of which the first `used` are
            filled.
        cross_attention: keys and values of the encoder output, which never change; None without cross-attention.
    """

    attention: KeyValues
    cross_attention: KeyValues | None = None


class Cache(NamedTuple):
    """The cache of one stack.

    A token has the same index in all examples, padding included, so that all examples have equal shapes. `present`
    marks padding, and `positions` holds the tokens' positions.

    Attributes:
        layers: caches by name of the layer group, with a leading axis of layers.
        positions: `[batch, capacity]` position of each token.
        present: `[batch, capacity]` bool, False at padding and where no token is yet.
        used: number of tokens in the cache, padding included; a scalar.
    """

    layers: dict[str, LayerCache]
    positions: jax.Array
    present: jax.Array
    used: jax.Array

    @property
    def counts(self) -> jax.Array:
        """`[batch]` number of tokens seen, padding left out."""
        return self.present.sum(axis=1)

    def next_positions(self, present: jax.Array) -> jax.Array:
        """Return `[batch, new]` positions of new tokens, counted from 0 without padding, see `present [batch, new]`."""
        return jnp.maximum(self.counts[:, None] + jnp.cumsum(present, axis=1) - 1, 0)

    def admit(self, positions: jax.Array, present: jax.Array) -> Cache:
        """Return the cache with new tokens' `[batch, new]` positions and presence, before their keys are known."""
        return self._replace(
            positions=write(self.positions, positions.astype(self.positions.dtype), self.used),
            present=write(self.present, present, self.used),
        )

    def take(self, rows: jax.Array) -> Cache:
        """Return the cache of these examples, in this order; an example may be taken several times."""
        return Cache(
            layers=jax.tree.map(lambda array: jnp.take(array, rows, axis=1), self.layers),
            positions=jnp.take(self.positions, rows, axis=0),
            present=jnp.take(self.present, rows, axis=0),
            used=self.used,
        )

    def reorder(self, rows: jax.Array) -> Cache:
        """Return the cache of these examples, each with the same source as the one whose row it takes."""
        taken = self.take(rows)
        kept = {
            name: taken.layers[name]._replace(cross_attention=self.layers[name].cross_attention)
            for name in taken.layers
        }
        return taken._replace(layers=kept)


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
    """

    tokens: jax.Array
    present: jax.Array
    state: DecodingState
