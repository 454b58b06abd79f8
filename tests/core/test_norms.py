"""Normalisations by their formulas."""

from __future__ import annotations

import jax
import numpy as np

from headjax.core.norms import LayerNorm, OffsetRMSNorm, RMSNorm, declare_small
from tests.closeness import assert_close

X = np.random.default_rng(0).normal(1.0, 2.0, (3, 8)).astype(np.float32)
SCALE, BIAS = np.linspace(0.5, 2.0, 8, dtype=np.float32), np.linspace(-1.0, 1.0, 8, dtype=np.float32)


def test_layer_norm_by_its_formula():
    wide = X.astype(np.float64)
    expected = SCALE * (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-3) + BIAS
    assert_close(LayerNorm(1e-3)({"scale": SCALE, "bias": BIAS}, X), expected, sums=8)


def test_rms_norm_by_its_formula():
    wide = X.astype(np.float64)
    expected = SCALE * wide / np.sqrt(np.square(wide).mean(-1, keepdims=True) + 1e-3)
    assert_close(RMSNorm(1e-3)({"scale": SCALE}, X), expected, sums=8)


def test_offset_rms_norm_adds_one_to_its_weight():
    wide = X.astype(np.float64)
    expected = (1.0 + BIAS) * wide / np.sqrt(np.square(wide).mean(-1, keepdims=True) + 1e-3)
    norm = OffsetRMSNorm(1e-3)
    assert_close(norm({"scale": BIAS}, X), expected, sums=8)
    assert_close(norm(norm.scaled({"scale": BIAS}, 3.0), X), 3.0 * expected, sums=8)
    assert_close(RMSNorm(1e-3)(RMSNorm().scaled({"scale": norm.gain({"scale": BIAS})}, 3.0), X), 3.0 * expected, sums=8)
    assert not np.any(norm.tensors(8)["scale"].init(jax.random.key(0), norm.tensors(8)["scale"], np.float32))


def test_a_small_norm_is_never_sharded_nor_decayed():
    for tensor in declare_small(LayerNorm(), 4).values():
        assert tensor.shape == (4,)
        assert tensor.axes == (None,)
        assert not tensor.decay
