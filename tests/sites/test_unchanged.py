"""The model handed in is the same after every function, whatever fails within it."""

import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from tests.sites import houses
from tests.sites.houses import HOUSES, batches, loss, snapshot

BATCHES = batches()


def first_heads(model):
    """The first group of every layer: heads that every class can lose."""
    sites = headjax.attention_sites(model)
    return [
        head
        for site in sites
        for start in range(0, len(site.head_ids()), site.heads)
        for head in site.head_ids()[start : start + site.heads // site.kv_heads]
    ]


FUNCTIONS = {
    "score_heads": lambda model, loss: headjax.score_heads(model, BATCHES, loss=loss),
    "ablate": lambda model, loss: headjax.ablate(model, BATCHES[:1], loss=loss, heads=first_heads(model)[:1]),
    "learn_gates": lambda model, loss: headjax.learn_gates(
        model, BATCHES, headjax.Subset(count=4), steps=3, learning_rate=0.1, loss=loss
    ),
    "reconstruct": lambda model, loss: headjax.reconstruct(model, BATCHES, first_heads(model), loss=loss).model,
}


def assert_same(model, before):
    after = snapshot(model)
    assert after[0] == before[0]
    assert after[2] == before[2]
    assert after[1].keys() == before[1].keys()
    for path, array in before[1].items():
        np.testing.assert_array_equal(after[1][path], array, err_msg=str(path))


def overwriting(model, batch):
    """A loss that changes the model that it gets, and stops."""
    model.head.kernel.set_value(jnp.zeros_like(model.head.kernel[...]))
    model.layers = None
    raise RuntimeError("stopped after a change")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_loss_that_fails_leaves_the_model_as_it_was(function):
    model = HOUSES["scanned"]()
    before = snapshot(model)
    with pytest.raises(RuntimeError, match="stopped after"):
        FUNCTIONS[function](model, overwriting)
    assert_same(model, before)


def counting(model, batch):
    """A loss that changes the model that it gets, and goes on."""
    found = loss(model, batch)
    model.head.bias.set_value(model.head.bias[...] + 1.0)
    model.seen = True
    return found


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_a_loss_writes_into_its_model_is_lost(function):
    model = HOUSES["flax"]()
    before = snapshot(model)
    FUNCTIONS[function](model, counting)
    assert_same(model, before)


def test_results_share_no_array_that_training_could_change():
    model = HOUSES["flax"]()
    before = snapshot(model)
    removed = first_heads(model)[:1]
    for made in (
        headjax.prune(model, removed),
        headjax.reconstruct(model, BATCHES, removed, loss=loss).model,
        headjax.replace_attention(model, lambda layer: layer),
    ):
        houses.trained(made, BATCHES[0], 2)
        assert_same(model, before)
