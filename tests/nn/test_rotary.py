"""Rotary positions: logits see differences of positions and nothing else."""

import cmath

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headjax
from tests.closeness import assert_close

PAIRINGS = [headjax.nn.RotaryHalves, headjax.nn.RotaryInterleaved]
TURN = {pairing: jax.jit(pairing(base=100.0)) for pairing in PAIRINGS}


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_pairs_turn_by_position_times_rate(pairing):
    rotary = pairing(base=50.0, dim=4)
    vector = np.asarray([1.0, 2.0, 3.0, 4.0, 5.0])
    turned = np.ravel(jax.jit(rotary)(vector.astype(np.float32).reshape(1, 1, 1, 5), np.array([[7]])))
    pairs = {headjax.nn.RotaryHalves: [(0, 2), (1, 3)], headjax.nn.RotaryInterleaved: [(0, 1), (2, 3)]}[pairing]
    for rate, (first, second) in zip([1.0, 50.0**-0.5], pairs, strict=True):
        expected = complex(vector[first], vector[second]) * cmath.exp(1j * 7 * rate)
        # An angle is as exact as its number of radians allows.
        assert_close(turned[[first, second]], [expected.real, expected.imag], sums=2, scale=7 * abs(expected))
    assert turned[4] == 5.0


@pytest.mark.parametrize("pairing", PAIRINGS)
@given(shift=st.integers(0, 500), seed=st.integers(0, 5))
def test_logits_depend_only_on_differences_of_positions(pairing, shift, seed):
    turn, generator = TURN[pairing], np.random.default_rng(seed)
    query, key = (generator.standard_normal((1, 4, 2, 6)).astype(np.float32) for _ in range(2))
    positions = np.array([[0, 3, 4, 9]])

    def logits(offset: int) -> np.ndarray:
        return np.einsum("bqhd,bkhd->bhqk", turn(query, positions + offset), turn(key, positions + offset))

    unturned = np.einsum("bqhd,bkhd->bhqk", query, key)
    # An angle is as exact as its number of radians allows.
    scale = (shift + 9) * float(np.abs(unturned).max())
    assert_close(logits(shift), logits(0), sums=6, scale=scale)
    turned, still = (np.diagonal(each, axis1=2, axis2=3) for each in (logits(shift), unturned))
    assert_close(turned, still, sums=6, scale=scale)
    assert np.abs(logits(0) - unturned).max() > 0.1


def test_scalings():
    rates = np.array([1.0, 1e-2, 1e-4, 1e-6], np.float32)
    assert_close(headjax.nn.LinearScaling(4.0)(rates, 1e8), rates / 4.0, sums=1)
    scaled = np.asarray(jax.jit(headjax.nn.Llama3Scaling(), static_argnums=1)(rates, 1e8)) / rates
    # 8192 positions turn these 1304, 13, 0.13 and 0.0013 times; below once is slow, above 4 times fast.
    assert_close(scaled, [1.0, 1.0, 1 / 8, 1 / 8], sums=1)
    between = headjax.nn.Llama3Scaling()(jnp.asarray([2.5 * 2 * np.pi / 8192]), 1e8)
    assert_close(np.asarray(between) * 8192 / (2 * np.pi), [(2.5 + 2.5 / 8) / 2], sums=4)


def test_yarn_keeps_fast_rates_divides_slow_ones_and_sharpens_logits():
    base, dim = 1e4, 16
    rates = base ** (-np.arange(0, dim, 2) / dim)
    # 512 positions turn pair i 81.5 * 10^(-i / 2) times: 32 times at 0.8, once at 3.8, and 0 and 4 are around them.
    scaling = headjax.nn.YarnScaling(factor=4.0, original_length=512)
    expected = [1.0, *(1 - 0.75 * i / 4 for i in (1, 2, 3)), *[0.25] * 4]
    assert_close(np.asarray(scaling(jnp.asarray(rates, jnp.float32), base)) / rates, expected, sums=4)
    begin, end = (2 * np.log10(512 / (2 * np.pi * turns)) for turns in (32, 1))
    exact = headjax.nn.YarnScaling(factor=4.0, original_length=512, whole_pairs=False)
    ramp = np.clip((np.arange(dim // 2) - begin) / (end - begin), 0.0, 1.0)
    assert_close(np.asarray(exact(jnp.asarray(rates, jnp.float32), base)) / rates, 1 - 0.75 * ramp, sums=4)
    attention = headjax.Kind(
        headjax.MultiHeadAttention, num_heads=1, head_dim=dim, rotary=headjax.nn.RotaryHalves(scaling=scaling)
    )
    assert attention.logit_scale == pytest.approx((0.1 * np.log(4.0) + 1) ** 2 / 4.0)
    assert attention.replace(scale=0.5).logit_scale == 0.5
