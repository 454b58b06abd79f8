"""Captured variance, rank budgets, break-even lengths and the split of logits."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from headjax.attention import Attention, Collaborative, MultiHead
from headjax.conversion import ToCollaborative, convert
from headjax.conversion.analysis import (
    captured_variance,
    content_only,
    context_only,
    model_break_even,
    model_costs,
    rank_budget,
    rank_for,
    share_out,
)
from headjax.core.errors import ConfigError
from headjax.heads.pruning import prune
from headjax.models.config import ModelConfig
from headjax.models.encoder import Bert
from headjax.models.sublayers import Dense
from tests import tiny
from tests.closeness import assert_close

BERT = MultiHead(num_heads=12, head_dim=64)


def one_layer(attention: Attention) -> ModelConfig:
    """Return the architecture of one layer of BERT-base's width."""
    sizes = {"vocab_size": 8, "max_length": 8, "width": 768, "num_layers": 1, "feed_forward": Dense(8)}
    return Bert(attention=attention, **sizes).build()


def decoder_layer(attention: Attention) -> ModelConfig:
    """Return the architecture of one layer of BERT-base's width that has a cache."""
    return dataclasses.replace(tiny.decoder_config(tiny.layer(attention)), width=768)


@pytest.fixture(scope="module")
def model():
    return tiny.model(tiny.decoder_config())


def attention_params(model, layer: int):
    return model.config.decoder.unstack(model.params["decoder"])[layer]["attention"]


def with_attention(model, **arrays):
    old = model.params["decoder"]["layers_0_1"]
    layers = old | {"attention": old["attention"] | arrays}
    return model.replace(params=model.params | {"decoder": model.params["decoder"] | {"layers_0_1": layers}})


def test_captured_variance_is_the_share_of_squared_singular_values(model) -> None:
    found = captured_variance(model)
    assert list(found) == [("decoder", 0), ("decoder", 1)]
    params = {name: np.asarray(array, np.float64) for name, array in attention_params(model, 1).items()}
    one = found["decoder", 1]
    query, key = (params[name].reshape(16, 16) for name in ("query", "key"))
    slices = np.einsum("dhi,mhi->hdm", params["query"], params["key"])
    for curve, matrix in ((one.query, query), (one.key, key), (one.product, slices.sum(axis=0))):
        squares = np.square(np.linalg.svd(matrix, compute_uv=False))
        assert_close(curve, np.cumsum(squares) / squares.sum(), sums=tiny.SUMS)
    squares = np.square(np.linalg.svd(slices, compute_uv=False))[:, :4]
    assert_close(one.product_by_head, np.cumsum(squares, 1) / squares.sum(1, keepdims=True), sums=tiny.SUMS)
    assert one.product.shape == (16,)


def test_heads_that_share_their_queries_and_keys_are_low_rank_together_and_full_rank_alone(model) -> None:
    params = model.params["decoder"]["layers_0_1"]["attention"]
    same = {name: jnp.repeat(params[name][:, :, :1], 4, axis=2) for name in ("query", "key")}
    found = captured_variance(with_attention(model, **same))["decoder", 0]
    assert rank_for(found.product, 0.9999) == 4
    assert rank_for(found.query, 0.9999) == 4
    np.testing.assert_array_equal(rank_for(found.product_by_head, 0.9999), 4)


def test_rank_for_is_the_smallest_rank_that_captures_the_share() -> None:
    curve = np.array([0.5, 0.9, 0.95, 1.0])
    assert [int(rank_for(curve, share)) for share in (0.4, 0.5, 0.9, 0.91, 1.0)] == [1, 1, 2, 3, 4]
    with pytest.raises(ConfigError, match="share"):
        rank_for(curve, 1.5)


def test_a_budget_is_spent_where_it_captures_most() -> None:
    flat, steep = np.full(8, 0.125), np.array([0.9, 0.05, 0.02, 0.01, 0.01, 0.005, 0.003, 0.002])
    spectra = {("encoder", 0): flat, ("encoder", 1): steep}
    assert share_out(spectra, 9, 1) == {("encoder", 0): 8, ("encoder", 1): 1}
    assert share_out(spectra, 8, 2) == {("encoder", 0): 6, ("encoder", 1): 2}
    for total in (1, 17):
        with pytest.raises(ConfigError, match="total: must be from 2 to 16"):
            share_out(spectra, total, 1)


@pytest.mark.whole
def test_a_budget_converts_ragged_models(model) -> None:
    pruned = prune(model, ["decoder/1/0", "decoder/1/2"])
    ranks = rank_budget(pruned, 16, multiple=2, batches=[tiny.tokens()])
    assert sum(ranks.values()) == 16
    assert ranks["decoder", 1] <= 8
    converted = convert(pruned, {place: ToCollaborative(shared_dim=rank) for place, rank in ranks.items()}).model
    sizes = [attention.shared_dim for attention in converted.config.attentions()["decoder"]]
    assert sizes == [ranks["decoder", 0], ranks["decoder", 1]]


@pytest.mark.parametrize(("shared_dim", "length"), [(512, 72), (384, 152), (256, 340), (192, 574), (128, 1278)])
def test_break_even_lengths_of_the_paper(shared_dim: int, length: int) -> None:
    shared = Collaborative(num_heads=12, shared_dim=shared_dim, value_dim=64, head_dim=64)
    assert model_break_even(one_layer(shared), one_layer(BERT)) == length


def test_below_one_head_sharing_is_always_cheaper_and_more_always_dearer() -> None:
    small = Collaborative(num_heads=12, shared_dim=63, value_dim=64, head_dim=64)
    large = Collaborative(num_heads=12, shared_dim=800, value_dim=64, head_dim=64)
    assert model_break_even(one_layer(small), one_layer(BERT)) is None
    assert model_break_even(one_layer(large), one_layer(BERT)) == 0


def test_costs_grow_with_the_length() -> None:
    short, long = model_costs(decoder_layer(BERT), [10, 20])
    assert (short.length, short.cache) == (10, 10 * 2 * 768)
    assert long.flops > 2 * short.flops
    assert short.flops == BERT.flops(768, 768, 10, 10)


def test_context_and_content_are_the_two_parts_of_the_logits(model) -> None:
    """By probabilities of the last query, which sees all keys: log p is the sum of both parts' up to a constant."""
    one_layer = tiny.model(tiny.decoder_config(tiny.layer()))
    batch = tiny.tokens(1, 6)

    def weights(changed) -> np.ndarray:
        return np.asarray(changed(batch, attention=True).attention["decoder"][0][0])

    def logits(changed) -> np.ndarray:
        last = np.log(weights(changed)[:, -1])
        return last - last.mean(axis=-1, keepdims=True)

    parts = logits(context_only(one_layer)) + logits(content_only(one_layer))
    assert_close(logits(one_layer), parts, sums=tiny.SUMS)
    content = weights(content_only(one_layer))
    of_shorter = content[:, 5, :5] / content[:, 5, :5].sum(axis=-1, keepdims=True)
    assert_close(content[:, 4, :5], of_shorter, sums=tiny.SUMS)
    assert content_only(model).history[-1]["action"] == "content_only"


def test_the_split_needs_biases() -> None:
    bare = tiny.model(tiny.decoder_config(tiny.layer(tiny.multi_head(projection_bias=False))))
    with pytest.raises(ConfigError, match="decoder/0: attention: the split needs"):
        content_only(bare)
