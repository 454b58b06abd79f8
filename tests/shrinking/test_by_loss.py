"""Heads of a model that knows nothing of headjax, chosen together for a budget of parameters."""

import itertools

import jax
import numpy as np
import pytest
from flax import nnx

import headjax
from tests import tiny
from tests.closeness import assert_close
from tests.models.test_encoder import config as albert
from tests.selected import first
from tests.sites.houses import HOUSES, SUMS, batches, mean_loss, snapshot, without
from tests.sites.test_unrecognised import Raw

BATCHES = batches(2)


def attention_parameters(model):
    layers = [one for path, one in nnx.iter_modules(model) if path and path[-1] == "attn"]
    return sum(array.size for layer in layers for array in jax.tree.leaves(nnx.state(layer, nnx.Param)))


@pytest.mark.parametrize("name", first(1, ["flax", "einsum", "scanned", "own"]))
def test_the_choice_is_the_best_of_all_within_the_budget(name):
    model = HOUSES[name]()
    before = snapshot(model)
    found = headjax.shrink(model, BATCHES, headjax.Budget(parameters=0.7), loss=mean_loss)
    assert snapshot(model)[0] == before[0]
    assert all((before[1][path] == array).all() for path, array in snapshot(model)[1].items())
    whole = attention_parameters(model)
    assert type(found.model) is type(model)
    assert attention_parameters(found.model) == found.choice.costs["parameters"] <= 0.7 * whole
    assert found.prices.whole("parameters") == whole
    every = itertools.product(*found.prices.options.values())
    sums = [sum(one.damage for one in own) for own in every if sum(one.parameters for one in own) <= 0.7 * whole]
    assert abs(found.choice.damage - min(sums)) < 1e-6


def test_damages_are_rises_of_the_loss_with_the_least_important_heads_gone():
    model = HOUSES["flax"]()
    found = headjax.shrink(model, BATCHES, headjax.Budget(parameters=0.9), loss=mean_loss)
    importance = headjax.score_heads(model, BATCHES, loss=mean_loss).score("importance")
    sites = headjax.attention_sites(model)
    heads, judge = sorted(sites[1].head_ids(), key=importance.__getitem__), nnx.jit(mean_loss)
    losses = [np.mean([judge(without(model, heads[:count]), batch) for batch in BATCHES]) for count in range(4)]
    options = found.prices.options["layers.*.attn/1"]
    assert [option.heads for option in options[1:]] == [tuple(sorted(h.head for h in heads[n:])) for n in (1, 2, 3)]
    assert_close([option.damage for option in options], np.array(losses) - losses[0], sums=SUMS, scale=max(losses))


def test_layers_that_are_not_recognised_count_and_stay_as_they_are():
    model = HOUSES["flax"]()
    model.layers[1].attn = Raw(nnx.Rngs(1))
    whole = attention_parameters(model)
    with pytest.warns(UserWarning, match=r"layers\.1\.attn") as caught:
        found = headjax.shrink(model, BATCHES, headjax.Budget(parameters=0.8), loss=mean_loss)
    assert len(caught) == 1
    assert found.prices.whole("parameters") == whole
    assert attention_parameters(found.model) == found.choice.costs["parameters"] <= 0.8 * whole
    with pytest.raises(headjax.HeadjaxError, match=r"layers\.1\.attn"):
        headjax.shrink(model, BATCHES, headjax.Budget(parameters=0.8), loss=mean_loss, strict=True)
    with pytest.warns(UserWarning, match="attn"), pytest.raises(headjax.HeadjaxError, match="parameters"):
        headjax.shrink(model, BATCHES, headjax.Budget(parameters=0.3), loss=mean_loss)


def test_uniform_layers_keep_equal_numbers():
    found = headjax.shrink(HOUSES["flax"](), BATCHES, headjax.Budget(parameters=0.6), loss=mean_loss, uniform=True)
    assert len({site.heads for site in headjax.attention_sites(found.model)}) == 1


@pytest.mark.parametrize("name, budget, message", [("flax", 0.01, "parameters"), ("flax", 0.0, "parameters")])
def test_what_cannot_shrink_is_one_line(name, budget, message):
    with pytest.raises(headjax.HeadjaxError, match=message):
        headjax.shrink(HOUSES[name](), BATCHES, headjax.Budget(parameters=budget), loss=mean_loss)


def test_a_model_of_headjax_shrinks_for_a_loss_of_ones_own():
    layer = tiny.layer(tiny.grouped(4, 2, 4))
    model = tiny.model(tiny.decoder_config(layer, layer))
    batches = [tiny.tokens(4, 8, seed) for seed in range(2)]

    def own(model, batch):
        return (model(batch).hidden ** 2).sum(axis=(1, 2))

    found = headjax.shrink(model, batches, headjax.Budget(parameters=0.6), loss=own)
    assert {len(own.ids) for own in found.model.config.attentions()["decoder"]} == {2}
    assert len(found.removed) == 4
    with pytest.raises(headjax.HeadjaxError, match=r"^flops: needs a model that offers the walk"):
        headjax.shrink(model, batches, headjax.Budget(flops=0.6), loss=own)
    shared = tiny.model(albert("albert", num_layers=2))
    with pytest.raises(headjax.HeadjaxError, match="its layers share their parameters"):
        headjax.shrink(shared, batches, headjax.Budget(parameters=0.6), loss=own)
