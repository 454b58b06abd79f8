"""Normalisations by their formulas."""

from __future__ import annotations

import jax
import numpy as np

from headjax.core.modules import declared
from headjax.core.norms import LayerNorm, OffsetRMSNorm, RMSNorm, small_norm
from tests.closeness import assert_close

X = np.random.default_rng(0).normal(1.0, 2.0, (3, 8)).astype(np.float32)
SCALE, BIAS = np.linspace(0.5, 2.0, 8, dtype=np.float32), np.linspace(-1.0, 1.0, 8, dtype=np.float32)


def test_layer_norm_by_its_formula():
    wide = X.astype(np.float64)
    expected = SCALE * (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-3) + BIAS
    assert_close(LayerNorm(1e-3).bind({"scale": SCALE, "bias": BIAS}, 8)(X), expected, sums=8)


def test_rms_norm_by_its_formula():
    wide = X.astype(np.float64)
    expected = SCALE * wide / np.sqrt(np.square(wide).mean(-1, keepdims=True) + 1e-3)
    assert_close(RMSNorm(1e-3).bind({"scale": SCALE}, 8)(X), expected, sums=8)


def test_offset_rms_norm_adds_one_to_its_weight():
    wide = X.astype(np.float64)
    expected = (1.0 + BIAS) * wide / np.sqrt(np.square(wide).mean(-1, keepdims=True) + 1e-3)
    norm = OffsetRMSNorm(1e-3).bind({"scale": BIAS}, 8)
    assert_close(norm(X), expected, sums=8)
    assert_close(norm.scaled(3.0)(X), 3.0 * expected, sums=8)
    assert_close(RMSNorm(1e-3).bind({"scale": norm.gain()}, 8).scaled(3.0)(X), 3.0 * expected, sums=8)
    scale = OffsetRMSNorm().module(8).scale
    assert not np.any(scale.init(jax.random.key(0), scale, np.float32))


def test_a_small_norm_is_never_sharded_nor_decayed():
    for tensor in declared(small_norm(LayerNorm(), 4)).values():
        assert tensor.shape == (4,)
        assert tensor.out_sharding == (None,)
        assert not tensor.decay
