"""The operands of attention (arrays, mask, dropout), and its result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from headjax.mesh.random_bits import dropped

KeyValues = dict[str, jax.Array]
"""Arrays `[batch, key, ...]` that a formulation computes from the attended sequence; a decoding cache holds them."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mask:
    """Conditions under which query i may attend to key j; all of them must hold.

    The conditions stay separate until a kernel needs an array, because kernels make use of single ones; `array`
    defines their meaning.

    Attributes:
        causal: j <= i + query_offset.
        keys: `[batch, key]` bool, False at padding.
        query_segments, key_segments: `[batch, query]`, `[batch, key]` integers; packed examples attend only within the
            same number.
        query_offset: position of the first query among the keys (scalar, or `[batch]`), for decoding with a cache.
        window: |i + query_offset - j| < window, so that a causal query sees itself and the window - 1 keys before it.
        query_positions, key_positions: `[batch or 1, query]`, `[batch or 1, key]` positions between which the window
            measures distances where padding lies between tokens; None counts the indices i and j.
    """

    causal: bool = dataclasses.field(default=False, metadata={"static": True})
    keys: jax.Array | None = None
    query_segments: jax.Array | None = None
    key_segments: jax.Array | None = None
    query_offset: jax.Array | None = None
    window: int | None = dataclasses.field(default=None, metadata={"static": True})
    query_positions: jax.Array | None = None
    key_positions: jax.Array | None = None

    def array(self, query_length: int, key_length: int) -> jax.Array | None:
        """Return `[batch or 1, 1, query, key]` bool, True where attention is allowed; None when everything is."""
        allowed: jax.Array | None = None
        if self.causal or self.window is not None:
            offset = jnp.zeros((), jnp.int32) if self.query_offset is None else self.query_offset
            query = jnp.reshape(offset, (-1, 1)) + jnp.arange(query_length)[None, :]
            key = jnp.arange(key_length)[None, :]
            if self.causal:
                allowed = (key[:, None, :] <= query[:, :, None])[:, None]
            if self.window is not None:
                if self.query_positions is not None and self.key_positions is not None:
                    query, key = self.query_positions, self.key_positions
                near = (jnp.abs(query[:, :, None] - key[:, None, :]) < self.window)[:, None]
                allowed = near if allowed is None else allowed & near
        if self.keys is not None:
            present = self.keys.astype(bool)[:, None, None, :]
            allowed = present if allowed is None else allowed & present
        if self.query_segments is not None and self.key_segments is not None:
            same = (self.query_segments[:, :, None] == self.key_segments[:, None, :])[:, None]
            allowed = same if allowed is None else allowed & same
        return allowed


class Dropout(NamedTuple):
    """Dropout, which zeroes entries with probability `rate` and scales the rest by 1 / (1 - rate).

    Dropout is the identity without a key, as outside training.
    """

    rate: float | jax.Array = 0.0  # `of_examples` also takes a traced one
    key: jax.Array | None = None

    @property
    def active(self) -> bool:
        """Whether anything is zeroed."""
        return self.key is not None and bool(self.rate > 0.0)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Return the inputs `[batch, ...]` after dropout."""
        if self.key is None or not self.active:
            return inputs
        return dropped(inputs, self.key, self.rate, inputs.shape)

    def of_examples(self, inputs: jax.Array) -> jax.Array:
        """Return the inputs `[batch, ...]` with whole examples zeroed: stochastic depth (Huang et al. 2016)."""
        if self.key is None:
            return inputs
        return dropped(inputs, self.key, self.rate, (inputs.shape[0], *(1,) * (inputs.ndim - 1)))


def fold(key: jax.Array | None, index: jax.Array | int) -> jax.Array | None:
    """An independent key for each index, or None without a key."""
    return None if key is None else jax.random.fold_in(key, index)


class AttentionInputs(NamedTuple):
    """The operands of one call of an attention kernel, see `headjax.nn.attend`."""

    query: jax.Array
    key: jax.Array
    value: jax.Array
    scale: float
    mask: Mask | None = None
    bias: jax.Array | None = None
    dropout: Dropout = Dropout()
    mixing: jax.Array | None = None
    observe: Callable[[jax.Array], jax.Array] | None = None
    softcap: float | None = None

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.query.shape[2] if self.mixing is None else self.mixing.shape[0]


class Attended(NamedTuple):
    """Result of attention."""

    context: jax.Array  # [batch, query, heads, value_dim], the weighted sums of values
    probabilities: jax.Array | None  # [batch, heads, query, key] before dropout, where the kernel holds them
