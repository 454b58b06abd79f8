"""Normalisations by their formulas."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from headjax.core.modules import declared
from headjax.core.norms import LayerNorm, OffsetRMSNorm, RMSNorm, small_norm
from tests.closeness import assert_close

X = np.random.default_rng(0).normal(1.0, 2.0, (3, 8)).astype(np.float32)
WIDE = X.astype(np.float64)
SCALE, BIAS = np.linspace(0.5, 2.0, 8, dtype=np.float32), np.linspace(-1.0, 1.0, 8, dtype=np.float32)
CENTRED = (WIDE - WIDE.mean(-1, keepdims=True)) / np.sqrt(WIDE.var(-1, keepdims=True) + 1e-3)
DIVIDED = WIDE / np.sqrt(np.square(WIDE).mean(-1, keepdims=True) + 1e-3)


@pytest.mark.parametrize(
    ("norm", "params", "expected"),
    [
        (LayerNorm(1e-3), {"scale": SCALE, "bias": BIAS}, SCALE * CENTRED + BIAS),
        (RMSNorm(1e-3), {"scale": SCALE}, SCALE * DIVIDED),
        (OffsetRMSNorm(1e-3), {"scale": BIAS}, (1.0 + BIAS) * DIVIDED),
    ],
    ids=lambda value: type(value).__name__,
)
def test_norms_by_their_formulas(norm, params, expected):
    assert_close(jax.jit(norm.bind(params, 8))(X), expected, sums=8)


def test_a_norm_is_scaled_and_an_offset_is_a_gain_that_starts_at_one():
    norm = OffsetRMSNorm(1e-3).bind({"scale": BIAS}, 8)
    assert_close(norm.scaled(3.0)(X), 3.0 * (1.0 + BIAS) * DIVIDED, sums=8)
    assert_close(RMSNorm(1e-3).bind({"scale": norm.gain()}, 8).scaled(3.0)(X), norm.scaled(3.0)(X), sums=8)
    scale = OffsetRMSNorm().module(8).scale
    assert not np.any(scale.init(jax.random.key(0), scale, np.float32))


def test_a_small_norm_is_never_sharded_nor_decayed():
    for tensor in declared(small_norm(LayerNorm(), 4)).values():
        assert (tensor.shape, tensor.out_sharding, tensor.decay) == ((4,), (None,), False)
