"""Effective numbers of attended tokens against distributions counted by hand."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from headjax.core.errors import ConfigError, DataError
from headjax.heads.attended_tokens import attended_tokens
from tests import tiny
from tests.closeness import assert_close


@pytest.fixture(scope="module")
def batch():
    tokens = tiny.tokens(2, 10)["input_ids"]
    mask = np.ones_like(tokens)
    mask[1, 6:] = 0
    return {"input_ids": tokens, "attention_mask": mask}


@pytest.fixture(scope="module")
def model():
    return tiny.model(tiny.decoder_config(*(tiny.layer(),) * 4))


def entropy_exponent(p):
    return np.exp(-np.sum(np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0)), 0.0), axis=-1))


@pytest.mark.parametrize("group", [1, 2])
def test_it_is_the_exponent_of_the_entropy_over_all_queries_that_are_no_padding(model, batch, group):
    layers = np.stack([np.asarray(p, np.float64) for p in model(batch, attention=True).attention["decoder"]])
    counted = batch["attention_mask"].astype(bool)
    single = [entropy_exponent(p).mean(axis=1)[counted].mean() for p in layers]
    grouped = layers.mean(axis=2).reshape(4 // group, group, *layers.shape[1:2], *layers.shape[3:]).mean(axis=1)
    joint = [entropy_exponent(p)[counted].mean() for p in grouped]
    found = attended_tokens(model, [batch], group=group)["decoder"]
    assert_close(found.single, single, sums=tiny.SUMS)
    assert_close(found.joint, joint, sums=tiny.SUMS)
    assert np.all(found.joint >= found.single.reshape(-1, group).min(axis=1))


def test_without_preferences_every_visible_key_counts(model, batch):
    params = model.params | {"decoder": {**model.params["decoder"]}}
    run = params["decoder"]["layers_0_3"]
    silent = {name: jnp.zeros_like(run["attention"][name]) for name in ("query", "query_bias")}
    params["decoder"]["layers_0_3"] = run | {"attention": run["attention"] | silent}
    found = attended_tokens(model.replace(params=params), [batch])["decoder"]
    visible = np.concatenate([np.arange(1, 11), np.arange(1, 7)]).mean()
    assert_close(found.single, np.full(4, visible), sums=tiny.SUMS)
    assert_close(found.joint, np.full(4, visible), sums=tiny.SUMS)


def test_what_cannot_be_counted_is_an_error(model, batch):
    with pytest.raises(ConfigError, match="group: 3 layers at a time do not divide the 4 of stack decoder"):
        attended_tokens(model, [batch], group=3)
    with pytest.raises(DataError, match="no example"):
        attended_tokens(model, [])
