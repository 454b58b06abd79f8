"""Dropout as a value: a rate and a key, or nothing."""

from __future__ import annotations

from typing import NamedTuple

import jax

from headjax.attention.operands import Dropout
from headjax.mesh.random_bits import dropped


class Dropper(NamedTuple):
    """Zeroes entries with probability `rate` and scales the rest by 1 / (1 - rate); the identity without a key.

    Attributes:
        rate: probability of zeroing.
        key: PRNG key, or None outside training.
    """

    rate: float = 0.0
    key: jax.Array | None = None

    def __call__(self, inputs: jax.Array, split: int | None = None) -> jax.Array:
        """The inputs `[batch, ...]` after dropout; `split` is the dimension that the mesh axis `model` splits."""
        if self.key is None or self.rate == 0.0:
            return inputs
        return dropped(inputs, self.key, self.rate, split=split)

    def attention(self) -> Dropout | None:
        """The same dropout, for attention probabilities."""
        return None if self.key is None or self.rate == 0.0 else Dropout(self.rate, self.key)


class Skipper(NamedTuple):
    """Leaves out what a sub-layer adds for whole examples: stochastic depth (Huang et al. 2016).

    Attributes:
        rate: probability for an example, a scalar that may be traced; what the others add is scaled by 1 / (1 - rate).
        key: PRNG key.
    """

    rate: jax.Array | float
    key: jax.Array

    def __call__(self, inputs: jax.Array) -> jax.Array:
        return dropped(inputs, self.key, self.rate, shape=(inputs.shape[0], *(1,) * (inputs.ndim - 1)))


def fold(key: jax.Array | None, index: int) -> jax.Array | None:
    """An independent key for each index, or None without a key."""
    return None if key is None else jax.random.fold_in(key, index)
