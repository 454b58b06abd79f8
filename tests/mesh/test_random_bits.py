"""What dropout keeps: the rate, on every device its own, and where each generator draws."""

import functools
import re

import jax
import numpy as np
import pytest

import headjax
from headjax.mesh.mesh import batch_sharding, kept, parts_along, replicated
from headjax.plan.plan import collectives

SHAPE = (8, 64, 32)
RATE = 0.25


@pytest.fixture(scope="module")
def mesh():
    return headjax.MeshConfig(data=2, fsdp=2, model=2).build(jax.devices()[:8])


@functools.cache
def drawing(mesh, prng, shape=SHAPE):
    """The jitted mask on a mesh, spread by example where that divides."""
    places = batch_sharding(mesh) if shape[0] % parts_along(mesh) == 0 else replicated(mesh)

    def draw(key, rate):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return kept(key, rate, shape)

    return jax.jit(draw, out_shardings=places), jax.random.key(3, impl=prng)


@pytest.mark.parametrize("prng", ["threefry2x32", "rbg"])
def test_entries_are_kept_at_the_rate_and_independently(prng, mesh):
    draw, key = drawing(mesh, prng)
    mask = np.asarray(draw(key, RATE))
    # Five standard deviations of a mean of 16,384 draws are 0.017.
    assert mask.mean() == pytest.approx(1 - RATE, abs=0.017)
    for first in range(SHAPE[0]):
        for second in range(first):
            assert np.mean(mask[first] == mask[second]) == pytest.approx(RATE**2 + (1 - RATE) ** 2, abs=0.06)
    np.testing.assert_array_equal(draw(key, RATE), mask)
    assert not np.array_equal(draw(jax.random.fold_in(key, 1), RATE), mask)


def test_threefry_drops_the_same_on_every_mesh(mesh):
    draw, key = drawing(mesh, "threefry2x32")
    np.testing.assert_array_equal(draw(key, RATE), jax.random.bernoulli(key, 1 - RATE, SHAPE))


def test_devices_that_hold_the_same_examples_drop_the_same(mesh):
    """Along the mesh axis `model` activations are copies, and so their masks must be."""
    draw, key = drawing(mesh, "rbg")
    shards = {}
    for shard in draw(key, RATE).addressable_shards:
        shards.setdefault(shard.index[0].start, []).append(np.asarray(shard.data))
    assert [len(copies) for copies in shards.values()] == [2, 2, 2, 2]
    for first, second in shards.values():
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("shape, own", [(SHAPE, "2x64x32"), ((3, 64, 32), "3x64x32"), ((3, 64), "3x64")])
def test_a_device_draws_for_its_own_examples_alone_where_they_divide(shape, own, mesh):
    draw, key = drawing(mesh, "rbg", shape)
    lowered = draw.lower(key, RATE)
    drawn = re.findall(r"rng_bit_generator.*-> \(tensor<[^>]*>, tensor<([\dx]+)xui16>\)", lowered.as_text())
    assert drawn == [own]
    assert collectives(lowered.compile().as_text()) == {}
