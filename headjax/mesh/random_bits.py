"""The generator of random bits, and dropout, whose bits are drawn where the examples lie."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from headjax.mesh.mesh import BATCH_AXES, SPREADING, axes_of, batch_parts, current_mesh

Prng = Literal["threefry2x32", "rbg"]
"""A generator, by JAX's name of its implementation.

`threefry2x32` hashes the number of every entry: an entry's bits depend on nothing else, so a step drops the same on
every mesh. A TPU computes each hash in some hundred instructions of its vector unit, and its compiler takes long over
them. `rbg` is the device's own generator (XLA's RngBitGenerator): cheap, but the dropped entries depend on the mesh and
on the kind of device.
"""


def step_key(seed: int | jax.Array, step: jax.Array | int, prng: Prng) -> jax.Array:
    """The key of a step's dropout, from the seed and the step alone."""
    return jax.random.fold_in(jax.random.key(seed, impl=prng), step)


def dropped(inputs: jax.Array, key: jax.Array, rate: jax.typing.ArrayLike, shape: tuple[int, ...]) -> jax.Array:
    """Return the inputs with entries zeroed with probability `rate`, and the others scaled by 1 / (1 - rate).

    The draws have a shape that broadcasts to the inputs', see `kept`.
    """
    scaled = inputs / jnp.asarray(1.0 - rate, inputs.dtype)
    return jnp.where(kept(key, rate, shape), scaled, jnp.zeros((), inputs.dtype))


def kept(key: jax.Array, rate: jax.typing.ArrayLike, shape: tuple[int, ...]) -> jax.Array:
    """True with probability 1 - `rate` for each entry of an array `[batch, ...]`, all independent.

    XLA splits `threefry2x32` as it splits the array. The device's own generator (`rbg`) cannot be split: every device
    would draw for the whole batch. So each draws for its own examples alone, from a separate key.
    """
    if str(jax.random.key_impl(key)) == "threefry2x32":
        return jax.random.bernoulli(key, 1.0 - rate, shape)
    mesh = current_mesh(*SPREADING)
    parts = 1 if mesh is None else batch_parts(mesh)

    def bernoulli(key: jax.Array, rate: jax.typing.ArrayLike, batch: int = shape[0] // parts) -> jax.Array:
        """A generator's bits go through memory, and 16 are half of 32: the rate holds to one part in 65,536."""
        bits = jax.random.bits(key, (batch, *shape[1:]), jnp.uint16)
        return bits.astype(jnp.float32) < jnp.asarray(1.0 - rate, jnp.float32) * 2.0**16

    if mesh is None or parts == 1 or shape[0] % parts:
        return bernoulli(key, rate, shape[0])
    axes, replicated = axes_of(mesh, BATCH_AXES), PartitionSpec()

    def part(key: jax.Array, rate: jax.typing.ArrayLike) -> jax.Array:
        return bernoulli(jax.random.fold_in(key, jax.lax.axis_index(axes)), rate)

    return jax.shard_map(
        part, mesh=mesh, in_specs=(replicated, replicated), out_specs=PartitionSpec(axes), check_vma=False
    )(key, rate)
