"""Sums of products over batches: on a mesh those of one device, and programs as few as the layers' structures."""

import jax
import numpy as np
import pytest

import headjax
from headjax.heads.sums import ROWS, sums_by_half
from tests import tiny
from tests.closeness import assert_close
from tests.compiled import programs

MASK = np.array([[1] * 8, [1] * 5 + [0] * 3] * 8)
BATCHES = [tiny.tokens(16, 8, seed) | {"attention_mask": MASK} for seed in range(2)]
REMOVED = ["decoder/0/3", "decoder/1/0"]


@pytest.fixture(scope="module")
def model():
    return tiny.model(tiny.decoder_config())


@pytest.fixture(scope="module")
def mesh():
    return headjax.MeshConfig(data=4, fsdp=2).build()


@pytest.mark.parametrize("shift", [0, 1])
def test_products_of_many_features_are_whole_and_of_every_second_example(shift):
    """2 * ROWS and more features, whose products are taken in two blocks."""
    rng = np.random.default_rng(0)
    x, r = (rng.standard_normal((5, 3, size)).astype(np.float32) for size in (2 * ROWS + 1, 4))
    found = jax.tree.map(np.asarray, jax.jit(sums_by_half)(x, r, shift))
    assert len(found.gram) == 2
    for half, number in zip(range(2), (shift, 1 - shift), strict=True):
        mine, lacking = x[number::2].reshape(-1, x.shape[2]), r[number::2].reshape(-1, 4)
        assert_close(found.whole().gram[half], mine.T @ mine, sums=9)
        assert_close(found.whole().cross[half], mine.T @ lacking, sums=9)
        assert_close(found.whole().square[half], np.square(lacking).sum(axis=0), sums=9)


def test_a_model_is_reconstructed_on_a_mesh_as_on_one_device(model, mesh):
    alone = headjax.reconstruct(model, BATCHES, REMOVED, feed_forward=True)
    with jax.set_mesh(mesh):
        together = headjax.reconstruct(model, BATCHES, REMOVED, feed_forward=True)
    assert (together.examples, together.tokens) == (alone.examples, alone.tokens) == (32, int(MASK.sum()) * 2)
    for mine, other in zip(together.layers, alone.layers, strict=True):
        assert (mine.name, mine.ridge, mine.unknowns) == (other.name, other.ridge, other.unknowns)
        assert mine.held_out == pytest.approx(other.held_out, rel=1e-3)
    for array in jax.tree.leaves(together.repaired.params):
        assert len(array.devices()) == 1
    assert_close(together.model(BATCHES[0]).logits, alone.model(BATCHES[0]).logits, sums=100 * tiny.SUMS)


@pytest.mark.whole
def test_a_model_is_ordered_calibrated_and_loses_units_on_a_mesh_as_on_one_device(model, mesh):
    def studied():
        order = headjax.reconstruction_order(model, BATCHES)
        converted = headjax.convert(model, "latent:rank=6", batches=BATCHES)
        return order, headjax.reconstruct(model, BATCHES, REMOVED, units=0.25), converted.errors

    order, found, errors = studied()
    with jax.set_mesh(mesh):
        spread_order, spread_found, spread_errors = studied()
    assert spread_order == order
    assert spread_found.units == found.units
    for mine, other in zip(spread_errors, errors, strict=True):
        assert mine.logit_error == pytest.approx(other.logit_error, rel=1e-3)


def test_a_batch_that_does_not_divide_over_the_mesh_is_an_error(model, mesh):
    with jax.set_mesh(mesh), pytest.raises(headjax.ConfigError, match=r"^batch_size: 6 does not divide over 8 devices"):
        headjax.reconstruct(model, [tiny.tokens(6, 8)], REMOVED)


@pytest.mark.parametrize("name", ["reconstruct", "order"])
def test_programs_do_not_grow_with_depth(name):
    """A model of one layer more compiles what has the number of layers in its shape, and nothing for each layer."""
    calls = {
        "reconstruct": lambda model: headjax.reconstruct(model, BATCHES, REMOVED[:1], feed_forward=True),
        "order": lambda model: headjax.reconstruction_order(model, BATCHES),
    }
    counts = []
    for depth in (2, 3, 6):
        whole = tiny.model(tiny.decoder_config(*[tiny.layer(tiny.multi_head(head_dim=5))] * depth))
        counts.append(programs(lambda whole=whole: calls[name](whole)))
    assert 0 < counts[2] <= counts[1] + 2


def test_more_copies_of_the_same_examples_change_no_map(model):
    """Sums over more tokens than are added in float32."""
    few = headjax.reconstruct(model, BATCHES, REMOVED, ridges=(1e-3,))
    many = headjax.reconstruct(model, BATCHES * 80, REMOVED, ridges=(1e-3,))
    assert many.tokens == 80 * few.tokens > 16384
    assert_close(many.model(BATCHES[0]).logits, few.model(BATCHES[0]).logits, sums=100 * tiny.SUMS)
