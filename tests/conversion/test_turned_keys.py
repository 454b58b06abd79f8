"""Keys that turn, in fewer numbers: exact where they can be, the best ones below, where the logits need them."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from headjax.attention import Grouped, MultiHead
from headjax.attention.rotary import RotaryHalves
from headjax.conversion import ToCollaborative, ToGrouped, convert
from headjax.conversion.target import Site
from headjax.conversion.turned_keys import shared_key, turning_losses
from headjax.conversion.turning import LEAST_SEEN, turning_keys
from headjax.core.errors import ConfigError
from headjax.models.generation import generate
from headjax.models.model import load, save
from headjax.models.sampling import Greedy
from tests import tiny
from tests.attention.formulations import WIDTH, random_inputs, random_params
from tests.closeness import assert_close
from tests.conversion.cases import TURNING, converted_layer, output
from tests.hub.directories import CONFIGS, model_of


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_keys_that_are_complex_multiples_share_without_loss(name) -> None:
    """One head's pairs are another's, scaled and turned by a number of each frequency's own."""
    source, inputs = TURNING[name], jnp.asarray(random_inputs())
    params = random_params(source)
    factor = np.array([0.7 + 0.2j, -0.4 + 1.1j])
    for part in {"key", "key_bias", "value", "value_bias"} & params.keys():
        one = np.asarray(params[part])[..., 0, :]
        pairs = factor * (one[..., :2] + 1j * one[..., 2:])
        other = np.concatenate([pairs.real, pairs.imag], axis=-1) if part.startswith("key") else one
        params[part] = jnp.asarray(np.stack([one, other], axis=-2), jnp.float32)
    found, weights = converted_layer(source, params, ToGrouped(kv_heads=1))
    assert_close(output(found, weights, inputs), output(source, params, inputs), sums=8 * tiny.SUMS)


DISTANCES = 256


def cancelling(seed: int) -> dict[str, jnp.ndarray]:
    """Keys whose two slowest frequencies almost cancel in the logits, as trained ones may: neither turns far."""
    generator = np.random.default_rng(seed)
    query, key = generator.standard_normal((2, WIDTH, 4, 2, 4))
    query[..., 3] = query[..., 2] + 0.1 * query[..., 3]
    key[..., 3] = -key[..., 2] + 0.1 * key[..., 3]
    query *= np.exp(generator.standard_normal((4, 1, 1)))
    arrays = {"query": query, "key": key, "value": query}
    params = {name: jnp.asarray(array.reshape(WIDTH, 4, 8), jnp.float32) for name, array in arrays.items()}
    return params | {"output": jnp.ones((4, 8, WIDTH))}


SLOW = Grouped(num_heads=4, kv_heads=4, head_dim=8, rotary=RotaryHalves(base=1e6))


def logit_error(params, rows, factors) -> float:
    """Mean squared error of the logits of independent inputs over all distances, with the keys c s instead."""
    keys = rows[:-1, None] * factors
    lost = np.asarray(params["key"]) - np.concatenate([keys.real, keys.imag], axis=-1)
    lost = jnp.broadcast_to(jnp.asarray(lost, jnp.float32).reshape(1, 1, -1, 8), (1, DISTANCES, WIDTH * 4, 8))
    turned = RotaryHalves(base=1e6)(lost, -jnp.arange(DISTANCES)[None]).reshape(DISTANCES, WIDTH, 4, 8)
    return float(jnp.square(jnp.einsum("xhd,tyhd->htxy", params["query"], turned)).sum())


def test_no_small_change_of_a_shared_key_makes_the_error_smaller() -> None:
    params, generator = cancelling(0), np.random.default_rng(0)
    rows, factors = shared_key(turning_keys(Site(SLOW.bind(params, WIDTH, WIDTH))))
    best = logit_error(params, rows, factors)
    assert best < 0.9 * logit_error(params, 0.0 * rows, factors)
    for _ in range(5):
        change, other = (0.01 * generator.standard_normal((2, *each.shape)) for each in (rows, factors))
        assert logit_error(params, rows + change[0] + 1j * change[1], factors) > best
        assert logit_error(params, rows, factors + other[0] + 1j * other[1]) > best


def test_a_key_that_all_tokens_have_counts_at_fast_frequencies_alone() -> None:
    """The softmax does not see it where it hardly turns over the context."""
    source = dataclasses.replace(TURNING["qwen2"], rotary=RotaryHalves(base=1e9))
    params = random_params(source)
    params["key"] = jnp.zeros_like(params["key"])
    size = np.real(np.trace(turning_keys(Site(source.bind(params, WIDTH, WIDTH))).by_frequency(), axis1=1, axis2=2))
    assert size[1] < 2 * LEAST_SEEN * size[0]


@pytest.mark.whole
def test_a_model_of_smaller_heads_decodes_as_it_reads_and_survives_its_folder(tmp_path) -> None:
    model = convert(model_of(CONFIGS["llama"]), "fixed:head_dim=2,value_dim=4").model
    assert [layer.cache_size(8, 8) for layer in model.config.attentions()["decoder"]] == [4 * (2 + 4)] * 2
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    prompt = np.array([[3, 5, 7, 2]])
    tokens = np.asarray(generate(loaded, {"input_ids": prompt}, max_new_tokens=5, sampler=Greedy()).tokens)
    whole = np.concatenate([prompt, tokens], axis=1)
    logits = np.asarray(model({"input_ids": whole}).logits)
    np.testing.assert_array_equal(logits[0, 3:-1].argmax(axis=-1), tokens[0])


@pytest.mark.whole
def test_one_fitted_key_per_group_beats_the_mean_one() -> None:
    """The logits between all pairs of 64 tokens, with both sides turned and heads of unequal queries."""
    source = MultiHead(num_heads=4, head_dim=4, rotary=RotaryHalves(base=100.0))
    params = random_params(source)
    params["query"] = params["query"] * jnp.asarray([3.0, 0.3, 1.0, 1.0])[None, :, None]
    inputs = jnp.asarray(random_inputs(batch=1, length=64))

    def logits(attention, weights):
        kept = attention.bind(weights, WIDTH, WIDTH).key_values(inputs, None)["key"]
        query = jnp.einsum("bqw,whd->bqhd", inputs, weights["query"]) + weights["query_bias"][None, None]
        query = attention.rotary(query, jnp.arange(64)[None])
        return jnp.einsum("bqhd,bkhd->bhqk", query, jnp.repeat(kept, 4 // kept.shape[2], axis=2))

    def error(pooling) -> float:
        target = ToGrouped(kv_heads=2, pooling=pooling, grouping="consecutive")
        difference = logits(*converted_layer(source, params, target)) - logits(source, params)
        return float(jnp.square(difference - difference.mean(axis=-1, keepdims=True)).sum())

    assert error("fitted") < 0.8 * error("mean")


def test_groups_are_those_whose_keys_cost_least_to_share() -> None:
    """The cost of a pair is what its best shared component leaves at every frequency."""
    source = TURNING["multi_head"]
    site = Site(source.bind(random_params(source), WIDTH, WIDTH))
    weighted, losses = turning_keys(site).by_frequency(), turning_losses(site)
    pair = np.array([0, 2])
    expected = np.linalg.eigvalsh(weighted[:, pair[:, None], pair])[:, 0].sum()
    total = np.trace(weighted, axis1=1, axis2=2).real.sum()
    assert losses[0, 2] == pytest.approx(expected / (total / 3), rel=1e-6)
    np.testing.assert_allclose(np.diagonal(losses), 0.0, atol=1e-12)


def test_keys_that_turn_are_not_shared_across_frequencies() -> None:
    with pytest.raises(ConfigError, match=r"^rotary:"):
        ToCollaborative(shared_dim=4).check(TURNING["llama"], WIDTH, WIDTH)
