"""Sums of products over spread examples are those of one device, and every device has them."""

from collections import Counter

import jax
import numpy as np
import pytest

from headjax.core.errors import ConfigError
from headjax.heads import layer_sums, sensitivity
from headjax.heads.head_id import HeadId
from headjax.heads.layer_sums import TwoModels, spread
from headjax.heads.reconstruct import reconstruct
from headjax.heads.reconstruction import silenced
from headjax.heads.reconstruction_order import reconstruction_order
from headjax.mesh.mesh import MeshConfig
from headjax.models import walk
from headjax.nn.compute import Compute
from tests import tiny
from tests.closeness import assert_close

MASK = np.array([[1] * 8, [1] * 5 + [0] * 3] * 8)
BATCHES = [tiny.tokens(16, 8, seed) | {"attention_mask": MASK} for seed in range(2)]
REMOVED = [HeadId("decoder", 0, 3), HeadId("decoder", 1, 0)]


@pytest.fixture(scope="module")
def model():
    return tiny.model(tiny.decoder_config())


@pytest.fixture(scope="module")
def mesh():
    return MeshConfig(data=4, fsdp=2).build()


def first_sums(model):
    """The sums of both layers' attention and feed-forward, with heads gone."""
    models = TwoModels(*spread(model, BATCHES), Compute())
    models.apart = True
    found = []
    for at in models.walk():
        gone = [head.head for head in REMOVED if head.layer == at.block[0]]
        if at.slot == "attention":
            models.put(silenced(models.layer, at.slot, np.repeat(np.isin(np.arange(4), gone), 4)))
        found.append(models.sums(at.slot))
    return found


def test_eight_devices_find_the_sums_of_one(model, mesh):
    alone = first_sums(model)
    with jax.set_mesh(mesh):
        together = first_sums(model)
    for (mine, scale), (other, other_scale) in zip(together, alone, strict=True):
        assert mine.tokens == other.tokens == int(MASK.sum()) * 2
        for array, expected in zip((*mine, scale), (*other, other_scale), strict=True):
            assert_close(array, expected, sums=MASK.size * tiny.SUMS)


@pytest.mark.whole
def test_a_model_is_ordered_and_reconstructed_on_a_mesh_as_on_one_device(model, mesh):
    alone, order = reconstruct(model, BATCHES, REMOVED, units=0.25), reconstruction_order(model, BATCHES)
    with jax.set_mesh(mesh):
        together, spread_order = reconstruct(model, BATCHES, REMOVED, units=0.25), reconstruction_order(model, BATCHES)
    assert spread_order == order
    assert together.units == alone.units
    assert (together.examples, together.tokens) == (alone.examples, alone.tokens)
    assert [repair.ridge for repair in together.layers] == [repair.ridge for repair in alone.layers]
    for array in jax.tree.leaves(together.repaired.params):
        assert len(array.devices()) == 1
    batch = BATCHES[0]
    assert_close(together.model(batch).logits, alone.model(batch).logits, sums=100 * tiny.SUMS)


def test_a_batch_that_does_not_divide_over_the_mesh_is_an_error(model, mesh):
    with jax.set_mesh(mesh), pytest.raises(ConfigError, match=r"^batch_size: 6 does not divide over 8 devices"):
        reconstruct(model, [tiny.tokens(6, 8)], REMOVED)


@pytest.mark.parametrize("depth", [3, 5])
def test_every_layer_takes_a_fixed_number_of_computations_by_one_program(depth, monkeypatch):
    """So do the programs: two of the sums, with the teacher and after it, and one of each other step."""
    model, calls = tiny.model(tiny.decoder_config(*[tiny.layer()] * depth)), Counter()
    programs = {"layer_sums": layer_sums.layer_sums, "_pulled": sensitivity._pulled, "_step": walk._step}
    known = {name: program._cache_size() for name, program in programs.items()}

    def count(module, name):
        function = getattr(module, name)

        def counted(*arguments):
            calls[name] += 1
            return function(*arguments)

        monkeypatch.setattr(module, name, counted)

    for module, name in ((layer_sums, "layer_sums"), (sensitivity, "_pulled"), (walk, "_step")):
        count(module, name)
    reconstruct(model, BATCHES, REMOVED[:1], feed_forward=True)
    assert calls == {"layer_sums": 2 * 2 * depth, "_step": 2 * (depth - 1)}
    calls.clear()
    reconstruction_order(model, BATCHES)
    assert calls == {"_step": depth, "_pulled": depth}, "one of two batches is judged"
    grown = {name: program._cache_size() - known[name] for name, program in programs.items()}
    assert all(grown[name] <= most for name, most in {"layer_sums": 2, "_pulled": 1, "_step": 1}.items()), grown
