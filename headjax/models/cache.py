"""What decoding keeps of the tokens it has seen, so that each new token costs one query."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from headjax.attention.formulation import Memory


class LayerCache(NamedTuple):
    """The cache of one layer, or with a leading axis of layers that of a run.

    Attributes:
        attention: the self-attention's memory, `[batch, slots, ...]` each, of which the first `used` are filled.
        cross_attention: the cross-attention's memory of the encoder output, which never changes; None without.
    """

    attention: Memory
    cross_attention: Memory | None = None


class Cache(NamedTuple):
    """The cache of one stack.

    Every token takes the same slot in all examples, padding included, so that all have equal shapes; what is padding
    says `present`, and which token it is says `positions`.

    Attributes:
        layers: caches by name of the run, with a leading axis of layers.
        positions: `[batch, slots]` position of each slot's token.
        present: `[batch, slots]` bool, False at padding and in slots not filled.
        used: number of slots filled, a scalar.
    """

    layers: dict[str, LayerCache]
    positions: jax.Array
    present: jax.Array
    used: jax.Array

    @property
    def counts(self) -> jax.Array:
        """`[batch]` number of tokens seen that are no padding."""
        return self.present.sum(axis=1)

    def next_positions(self, present: jax.Array) -> jax.Array:
        """`[batch, new]` positions of new tokens, of which `present [batch, new]` are no padding, from 0."""
        return jnp.maximum(self.counts[:, None] + jnp.cumsum(present, axis=1) - 1, 0)

    def admit(self, positions: jax.Array, present: jax.Array) -> Cache:
        """The cache with new tokens' `[batch, new]` positions and presence, before their memories are known."""
        return self._replace(
            positions=write(self.positions, positions.astype(self.positions.dtype), self.used),
            present=write(self.present, present, self.used),
        )

    def take(self, rows: jax.Array) -> Cache:
        """The cache of these examples, in this order; one may be taken several times."""
        return Cache(
            layers=jax.tree.map(lambda array: jnp.take(array, rows, axis=1), self.layers),
            positions=jnp.take(self.positions, rows, axis=0),
            present=jnp.take(self.present, rows, axis=0),
            used=self.used,
        )

    def reorder(self, rows: jax.Array) -> Cache:
        """The cache of these examples, each with the same source as the one whose row it takes."""
        taken = self.take(rows)
        kept = {
            name: taken.layers[name]._replace(cross_attention=self.layers[name].cross_attention)
            for name in taken.layers
        }
        return taken._replace(layers=kept)


def write(slots: jax.Array, new: jax.Array, used: jax.Array | int) -> jax.Array:
    """`slots [batch, slots, ...]` with `new [batch, new, ...]` in place from slot `used` on."""
    return jax.lax.dynamic_update_slice_in_dim(slots, new.astype(slots.dtype), used, axis=1)
