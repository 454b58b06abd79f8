"""The generator of random bits, and dropout, whose bits are drawn where the entries lie."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from headjax.mesh.mesh import BATCH_AXES, MODEL_AXIS, axes_of, parts_along, spreading_mesh

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


def dropped(
    inputs: jax.Array,
    key: jax.Array,
    rate: jax.typing.ArrayLike,
    shape: tuple[int, ...] | None = None,
    split: int | None = None,
) -> jax.Array:
    """Return the inputs with entries zeroed with probability `rate`, and the others scaled by 1 / (1 - rate).

    Args:
        inputs: `[batch, ...]`.
        key: PRNG key, the same on every device.
        rate: probability of zero; may be traced.
        shape: of the random draws; entries of the inputs onto which one draw is broadcast are zeroed together. None
            draws for every entry.
        split: the dimension that the mesh axis `model` splits: the heads, or a hidden layer's width.
    """
    staying = kept(key, rate, inputs.shape if shape is None else shape, split)
    return jnp.where(staying, inputs / jnp.asarray(1.0 - rate, inputs.dtype), jnp.zeros((), inputs.dtype))


def kept(key: jax.Array, rate: jax.typing.ArrayLike, shape: tuple[int, ...], split: int | None = None) -> jax.Array:
    """True with probability 1 - `rate` for each entry of an array `[batch, ...]`, all independent.

    A `threefry2x32` key gives the same on every mesh, since XLA splits that computation as it splits the array. The
    devices' own generator (`rbg`) cannot be split: every device would draw
    for the whole batch and all heads. So each draws for its own examples and heads, from a separate key, and the bits
    depend on the mesh. XLA could do that by itself (`xla_tpu_spmd_rng_bit_generator_unsafe`), but only on TPU, and
    nothing would ensure that a forward and its repetition in the backward pass drop the same.

    Args:
        key: PRNG key, the same on every device.
        rate: probability of False; may be traced.
        shape: of the array.
        split: the dimension that the mesh axis `model` splits: the heads, or a hidden layer's width.
    """
    if str(jax.random.key_impl(key)) == "threefry2x32":
        return jax.random.bernoulli(key, 1.0 - rate, shape)
    mesh = spreading_mesh()
    places = {} if mesh is None else _places(mesh, shape, split)
    if not places:
        return _below(key, 1.0 - rate, shape)
    own_shape = tuple(size // parts_along(mesh, places.get(index, ())) for index, size in enumerate(shape))
    axes = tuple(axis for along in places.values() for axis in along)

    def own(key: jax.Array, rate: jax.typing.ArrayLike) -> jax.Array:
        return _below(jax.random.fold_in(key, jax.lax.axis_index(axes)), 1.0 - rate, own_shape)

    whole, spread = PartitionSpec(), PartitionSpec(*(places.get(index) for index in range(len(shape))))
    return jax.shard_map(own, mesh=mesh, in_specs=(whole, whole), out_specs=spread, check_vma=False)(key, rate)


def _places(mesh: Any, shape: tuple[int, ...], split: int | None) -> dict[int, tuple[str, ...]]:
    """The mesh axes that split each dimension; a dimension that they do not divide stays whole."""
    wanted = {0: axes_of(mesh, BATCH_AXES)} | ({} if split is None else {split: (MODEL_AXIS,)})
    fits = {index: parts_along(mesh, axes) for index, axes in wanted.items()}
    return {index: wanted[index] for index, parts in fits.items() if parts > 1 and shape[index] % parts == 0}


def _below(key: jax.Array, probability: jax.typing.ArrayLike, shape: tuple[int, ...]) -> jax.Array:
    """True with a probability, to one part in 65,536: a generator's bits go through memory, and 16 are half of 32."""
    bits = jax.random.bits(key, shape, jnp.uint16)
    return bits.astype(jnp.float32) < jnp.asarray(probability, jnp.float32) * 2.0**16
