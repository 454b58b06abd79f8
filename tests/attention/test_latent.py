"""Latent attention is multi-head attention with factored keys and values, whichever way it is evaluated."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headjax.attention import Call, Latent, Mask, MultiHead, RotaryHalves
from tests.attention.formulations import FORMULATIONS, SUMS, WIDTH, attended_by, random_inputs, random_params
from tests.closeness import assert_close


def test_equals_multi_head_attention_of_its_products():
    latent = Latent(num_heads=3, rank=6, head_dim=4, value_dim=5, query_rank=7, scale=0.4, projection_bias=True)
    params, x = random_params(latent), jnp.asarray(random_inputs())
    wide = {
        "query": jnp.einsum("dr,rhk->dhk", params["query_latent"], params["query"]),
        "query_bias": params["query_bias"],
        "key": jnp.einsum("dr,rhk->dhk", params["latent"], params["key"]),
        "key_bias": jnp.full((3, 4), 0.7),  # vanishes in the softmax, which is why Latent has none
        "value": jnp.einsum("dr,rhv->dhv", params["latent"], params["value"]),
        "value_bias": params["value_bias"],
    }
    multi_head = MultiHead(num_heads=3, head_dim=4, value_dim=5, scale=0.4)
    call = Call(mask=Mask(causal=True))
    expected = attended_by(multi_head, wide, x, call)
    actual = attended_by(latent, params, x, call)
    assert_close(actual.context, expected.context, sums=SUMS)
    assert_close(actual.probabilities, expected.probabilities, sums=SUMS)


@pytest.mark.parametrize("name", ["latent", "latent_rotary"])
def test_both_evaluations_agree_with_gates_and_gradients(name, monkeypatch):
    latent = FORMULATIONS[name]
    params, x = random_params(latent), jnp.asarray(random_inputs())
    gates = jnp.asarray(np.random.default_rng(0).uniform(size=(2, 6, 3)), jnp.float32)
    call = Call(mask=Mask(causal=True), gates=gates)

    def loss(params):
        attended = attended_by(latent, params, x, call)
        return jnp.sum(jnp.sin(attended.context)), attended

    results = []
    for absorbs in (False, True):
        monkeypatch.setattr(Latent, "absorbs", lambda *_, absorbs=absorbs: absorbs)
        results.append(jax.jit(jax.grad(loss, has_aux=True))(params))
    # Rounding a logit changes its probability by a share that grows with the logit.
    probabilities = np.asarray(results[0][1].probabilities)
    logit = -np.log(probabilities[probabilities > 0].min())
    for expanded, absorbed in zip(*map(jax.tree.leaves, results), strict=True):
        assert_close(absorbed, expanded, sums=2 * SUMS, scale=logit * np.abs(expanded).max())


def test_the_rotary_part_sees_only_differences_of_positions():
    latent = FORMULATIONS["latent_rotary"]
    params, x = random_params(latent), jnp.asarray(random_inputs())

    def context(positions):
        call = Call(mask=Mask(causal=True), positions=positions)
        return np.asarray(attended_by(latent, params, x, call, positions=positions).context)

    counted = jnp.arange(6)[None]
    assert_close(context(counted + 40), context(counted), sums=SUMS)
    assert np.abs(context(3 * counted) - context(counted)).max() > 1e-3


def test_the_cache_holds_the_latent_whatever_the_heads():
    for heads in (1, 8):
        latent = Latent(num_heads=heads, rank=6, head_dim=4, rotary_dim=2, rotary=RotaryHalves())
        assert latent.cache_size(WIDTH, WIDTH) == 6 + 2


def test_decoding_costs_less_through_the_latent():
    latent = Latent(num_heads=16, rank=64, head_dim=64)
    expanded = 2 * 16 * (512 * 64 * 128 + 512 * 128)
    fixed = latent.flops(256, 256, 1, 0)
    compressed = 2 * 512 * 256 * 64
    assert latent.flops(256, 256, 1, 512) - fixed - compressed < expanded / 50
