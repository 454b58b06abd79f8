"""Rotary positions: logits see differences of positions and nothing else."""

from __future__ import annotations

import cmath

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headjax.attention import Call, Mask, MultiHead
from headjax.attention.rotary import LinearScaling, Llama3Scaling, RotaryHalves, RotaryInterleaved
from headjax.core.errors import ConfigError
from tests.attention.formulations import random_inputs, random_params

PAIRINGS = [RotaryHalves, RotaryInterleaved]


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_pairs_turn_by_position_times_rate(pairing):
    rotary = pairing(base=50.0, dim=4)
    vector = np.asarray([1.0, 2.0, 3.0, 4.0, 5.0])
    turned = np.asarray(rotary(jnp.asarray(vector, jnp.float32).reshape(1, 1, 1, 5), jnp.asarray([[7]]))).reshape(5)
    pairs = {RotaryHalves: [(0, 2), (1, 3)], RotaryInterleaved: [(0, 1), (2, 3)]}[pairing]
    for rate, (first, second) in zip([1.0, 50.0**-0.5], pairs, strict=True):
        expected = complex(vector[first], vector[second]) * cmath.exp(1j * 7 * rate)
        assert turned[first] == pytest.approx(expected.real, abs=1e-5)
        assert turned[second] == pytest.approx(expected.imag, abs=1e-5)
    assert turned[4] == 5.0


@pytest.mark.parametrize("pairing", PAIRINGS)
@given(shift=st.integers(0, 500), seed=st.integers(0, 5))
def test_logits_depend_only_on_differences_of_positions(pairing, shift, seed):
    rotary = pairing(base=100.0)
    generator = np.random.default_rng(seed)
    query, key = (jnp.asarray(generator.standard_normal((1, 4, 2, 6)), jnp.float32) for _ in range(2))
    positions = jnp.asarray([[0, 3, 4, 9]])

    def logits(offset: int) -> np.ndarray:
        turned = jnp.einsum("bqhd,bkhd->bhqk", rotary(query, positions + offset), rotary(key, positions + offset))
        return np.asarray(turned)

    np.testing.assert_allclose(logits(shift), logits(0), atol=2e-3)
    unturned = np.asarray(jnp.einsum("bqhd,bkhd->bhqk", query, key))
    np.testing.assert_allclose(
        np.diagonal(logits(shift), axis1=2, axis2=3), np.diagonal(unturned, axis1=2, axis2=3), atol=2e-3
    )
    assert np.abs(logits(0) - unturned).max() > 0.1


def test_shifted_positions_leave_the_layer_unchanged_and_stretched_ones_do_not():
    attention = MultiHead(num_heads=2, head_dim=4, rotary=RotaryHalves(base=100.0))
    params, x = random_params(attention), jnp.asarray(random_inputs())

    def context(positions):
        call = Call(mask=Mask(causal=True), positions=positions)
        return np.asarray(attention.attend(params, x, attention.memory(params, x, positions), call).context)

    counted = jnp.arange(6)[None, :]
    np.testing.assert_allclose(context(counted), context(None), atol=1e-6)
    np.testing.assert_allclose(context(counted + 11), context(counted), atol=1e-4)
    assert np.abs(context(2 * counted) - context(counted)).max() > 1e-2


def test_scalings():
    rates = jnp.asarray([1.0, 1e-2, 1e-4, 1e-6])
    np.testing.assert_allclose(LinearScaling(4.0)(rates), rates / 4.0)
    scaled = np.asarray(Llama3Scaling()(rates)) / np.asarray(rates)
    # 8192 positions turn these 1304, 13, 0.13 and 0.0013 times; below once is slow, above 4 times fast.
    np.testing.assert_allclose(scaled, [1.0, 1.0, 1 / 8, 1 / 8], rtol=1e-6)
    between = Llama3Scaling()(jnp.asarray([2.5 * 2 * np.pi / 8192]))
    np.testing.assert_allclose(between * 8192 / (2 * np.pi), [(2.5 + 2.5 / 8) / 2], rtol=1e-5)


def test_impossible_sizes_are_refused_with_both_fields():
    with pytest.raises(ConfigError, match=r"head_dim.*rotary.*got 7"):
        MultiHead(num_heads=2, head_dim=7, rotary=RotaryHalves())
    with pytest.raises(ConfigError, match=r"head_dim is 4, fewer than the rotary.dim of 6"):
        MultiHead(num_heads=2, head_dim=4, rotary=RotaryHalves(dim=6))
    with pytest.raises(ConfigError, match=r"dim.*pairs, got 3"):
        RotaryHalves(dim=3)
