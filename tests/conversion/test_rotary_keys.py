"""Keys that turn, in fewer numbers: exact where they can be, the best ones below, where the logits need them."""

import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from headjax.conversion.rope import rotary_keys_of, shared_key
from headjax.conversion.target import ConversionInput
from tests import tiny
from tests.closeness import assert_close
from tests.conversion.cases import ROTARY, converted_layer, output
from tests.hub.directories import CONFIGS, LLAMA, model_of
from tests.nn.formulations import WIDTH, random_inputs, random_params
from tests.selected import first


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_keys_that_are_complex_multiples_share_without_loss(name) -> None:
    """One head's pairs are another's, scaled and turned by a number of each frequency's own."""
    source, inputs = ROTARY[name], jnp.asarray(random_inputs())
    params = random_params(source)
    factor = np.array([0.7 + 0.2j, -0.4 + 1.1j])
    for part in {"key", "key_bias", "value", "value_bias"} & params.keys():
        one = np.asarray(params[part])[..., 0, :]
        pairs = factor * (one[..., :2] + 1j * one[..., 2:])
        other = np.concatenate([pairs.real, pairs.imag], axis=-1) if part.startswith("key") else one
        params[part] = jnp.asarray(np.stack([one, other], axis=-2), jnp.float32)
    found, weights = converted_layer(source, params, headjax.conversion.ToGrouped(kv_heads=1))
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
    return params | {"output": {"kernel": jnp.ones((4, 8, WIDTH))}}


SLOW = tiny.grouped(4, 4, 8, rotary=headjax.nn.RotaryHalves(base=1e6))


def logit_error(params, rows, factors) -> float:
    """Mean squared error of the logits of independent inputs over all distances, with the keys c s instead."""
    keys = rows[:-1, None] * factors
    lost = np.asarray(params["key"]) - np.concatenate([keys.real, keys.imag], axis=-1)
    lost = jnp.broadcast_to(jnp.asarray(lost, jnp.float32).reshape(1, 1, -1, 8), (1, DISTANCES, WIDTH * 4, 8))
    turned = headjax.nn.RotaryHalves(base=1e6)(lost, -jnp.arange(DISTANCES)[None]).reshape(DISTANCES, WIDTH, 4, 8)
    return float(jnp.square(jnp.einsum("xhd,tyhd->htxy", params["query"], turned)).sum())


def test_no_small_change_of_a_shared_key_makes_the_error_smaller() -> None:
    params, generator = cancelling(0), np.random.default_rng(0)
    rows, factors = shared_key(rotary_keys_of(ConversionInput(tiny.bound(SLOW, params, WIDTH, WIDTH))))
    best = logit_error(params, rows, factors)
    assert best < 0.9 * logit_error(params, 0.0 * rows, factors)
    for _ in range(5):
        change, other = (0.01 * generator.standard_normal((2, *each.shape)) for each in (rows, factors))
        assert logit_error(params, rows + change[0] + 1j * change[1], factors) > best
        assert logit_error(params, rows, factors + other[0] + 1j * other[1]) > best


PART = tiny.multi_head(2, 6, value_dim=3, rotary=headjax.nn.RotaryInterleaved(dim=4))


@pytest.mark.parametrize("source", [*ROTARY.values(), PART], ids=[*ROTARY, "part"])
def test_a_layer_comes_back_at_full_size(source) -> None:
    params = random_params(source)
    found, weights = converted_layer(source, params, f"latent:rank={WIDTH}")
    assert found.of is headjax.CompressedAttention
    assert_close(output(found, weights), output(source, params), sums=4 * tiny.SUMS)


@pytest.mark.parametrize("family", first(1, ["llama", "qwen3"]))
def test_a_decoder_generates_the_same(family) -> None:
    """At full size, by the cache, with padding on the left, pruned before or after."""
    model = model_of(LLAMA if family == "llama" else CONFIGS["qwen3"])
    width = model.config.width
    converted = headjax.convert(model, f"latent:rank={width}").model
    assert converted.config.attentions()["decoder"][0].module(width, width).cache_size() == width + 1
    prompts = {"input_ids": np.array([[3, 5, 7, 2], [0, 0, 0, 4]]), "attention_mask": np.array([[1] * 4, [0, 0, 0, 1]])}
    expected = headjax.generate(model, prompts, max_new_tokens=6, sampler=headjax.Greedy()).tokens
    np.testing.assert_array_equal(headjax.generate(converted, prompts, max_new_tokens=6).tokens, expected)
    heads = ["decoder/0/1", "decoder/1/0", "decoder/1/1"]
    batch = {"input_ids": np.array([[1, 2, 3, 4, 5]])}
    pruned = headjax.prune(converted, heads)
    assert_close(pruned(batch).logits, headjax.prune(model, heads)(batch).logits, sums=8 * tiny.SUMS)
