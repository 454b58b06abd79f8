"""Statistics of what initialisers draw, and that stacking layers changes no layer's distribution."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headjax.core.tensors import Constant, FanIn, Normal, Ones, Tensor, TruncatedNormal, Xavier, Zeros

QUERY = Tensor((64, 8, 16), ("embed", "heads", "head_dim"), head_axis=1)
OUTPUT = Tensor((8, 16, 64), ("heads", "head_dim", "embed"), inputs=(0, 1), head_axis=0)

CUT = 0.87962566  # standard deviation of a unit Gaussian cut at +-2

EXPECTED = {
    "normal": (Normal(0.02), lambda tensor: 0.02),
    "truncated_normal": (TruncatedNormal(0.02), lambda tensor: 0.02 * CUT),
    "fan_in": (FanIn(1.5), lambda tensor: 1.5 / np.sqrt(tensor.fan_in)),
    "xavier": (Xavier(0.5), lambda tensor: 0.5 * np.sqrt(2.0 / (tensor.fan_in + tensor.fan_out))),
}
"""Initialisers and the standard deviation they should have."""


def draw(initializer, tensor: Tensor, seed: int = 0, dtype=jnp.float32) -> np.ndarray:
    return np.asarray(initializer(jax.random.key(seed), tensor, dtype))


@pytest.mark.parametrize("tensor", [QUERY, OUTPUT, QUERY.stack(3)], ids=["query", "output", "stacked"])
@pytest.mark.parametrize("name", EXPECTED)
def test_mean_and_standard_deviation(name, tensor):
    initializer, expected = EXPECTED[name]
    drawn, deviation = draw(initializer, tensor), expected(tensor)
    assert drawn.shape == tensor.shape
    assert drawn.dtype == np.float32
    assert abs(drawn.mean()) < 5 * deviation / np.sqrt(drawn.size)
    assert drawn.std() == pytest.approx(deviation, rel=5 / np.sqrt(2 * drawn.size))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_stacked_tensor_has_the_unstacked_scale(name):
    """The layers axis belongs to no fan: a run of many layers starts as one layer does."""
    initializer, expected = EXPECTED[name]
    assert expected(OUTPUT.stack(100)) == expected(OUTPUT)
    layers = draw(initializer, OUTPUT.stack(4))
    np.testing.assert_allclose(layers.std(axis=(1, 2, 3)), draw(initializer, OUTPUT).std(), rtol=0.05)
    assert np.abs(np.corrcoef(layers.reshape(4, -1)) - np.eye(4)).max() < 0.05


def test_bounds():
    assert np.abs(draw(TruncatedNormal(0.02), QUERY)).max() <= 0.04
    limit = np.sqrt(6.0 / (64 + 128))
    drawn = np.abs(draw(Xavier(), QUERY))
    assert 0.99 * limit < drawn.max() <= limit


def test_fan_in_keeps_the_variance_of_unit_inputs():
    inputs = np.random.default_rng(0).standard_normal((1000, 8, 16))
    assert np.einsum("bhd,hdw->bw", inputs, draw(FanIn(), OUTPUT)).std() == pytest.approx(1.0, rel=0.05)


def test_constants():
    np.testing.assert_array_equal(draw(Zeros(), QUERY), 0.0)
    np.testing.assert_array_equal(draw(Ones, QUERY), 1.0)
    np.testing.assert_array_equal(draw(Constant(-0.5), QUERY, dtype=jnp.bfloat16), -0.5)


def test_the_key_decides():
    np.testing.assert_array_equal(draw(Normal(), QUERY, 1), draw(Normal(), QUERY, 1))
    assert not np.allclose(draw(Normal(), QUERY, 1), draw(Normal(), QUERY, 2))
