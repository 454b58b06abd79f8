"""Where dropout takes its random bits from."""

from __future__ import annotations

from typing import Literal

import jax

Prng = Literal["threefry2x32", "rbg"]
"""A generator, by JAX's name of its implementation.

`threefry2x32` hashes the number of every entry: an entry's bits depend on nothing else, so a step drops the same on
every mesh. A TPU computes each hash in some hundred instructions of its vector unit, and its compiler takes long over
them. `rbg` is the device's own generator (XLA's RngBitGenerator): cheap, but what is dropped depends on the mesh and on
the kind of device.
"""


def step_key(seed: int, step: jax.Array | int, prng: Prng) -> jax.Array:
    """The key of a step's dropout, from the seed and the step alone."""
    return jax.random.fold_in(jax.random.key(seed, impl=prng), step)
