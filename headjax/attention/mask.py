"""Which keys a query may attend to, kept as structure until a kernel needs an array."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mask:
    """The conditions under which query i may attend to key j, all of which must hold.

    Kernels read the fields they understand; `array` is the reference meaning.

    Attributes:
        causal: j <= i + query_offset.
        keys: `[batch, key]` bool, False at padding.
        query_segments, key_segments: `[batch, query]`, `[batch, key]` integers; packed examples attend only within the
            same number.
        query_offset: position of the first query among the keys (scalar, or `[batch]`), for decoding with a cache.
    """

    causal: bool = dataclasses.field(default=False, metadata={"static": True})
    keys: jax.Array | None = None
    query_segments: jax.Array | None = None
    key_segments: jax.Array | None = None
    query_offset: jax.Array | None = None

    def array(self, query_length: int, key_length: int) -> jax.Array | None:
        """`[batch or 1, 1, query, key]` bool, True where attention is allowed; None when everything is."""
        allowed: jax.Array | None = None
        if self.causal:
            offset = jnp.zeros((), jnp.int32) if self.query_offset is None else self.query_offset
            position = jnp.reshape(offset, (-1, 1)) + jnp.arange(query_length)[None, :]
            allowed = (jnp.arange(key_length)[None, None, :] <= position[:, :, None])[:, None]
        if self.keys is not None:
            present = self.keys.astype(bool)[:, None, None, :]
            allowed = present if allowed is None else allowed & present
        if self.query_segments is not None and self.key_segments is not None:
            same = (self.query_segments[:, :, None] == self.key_segments[:, None, :])[:, None]
            allowed = same if allowed is None else allowed & same
        return allowed
