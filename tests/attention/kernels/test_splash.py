"""Splash attention, interpreted on CPUs, against the reference; test_compile.py compiles it for a TPU."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from headjax.attention import attend
from headjax.attention.kernels import splash
from tests.attention.kernels.calls import inputs, masks

LENGTH = 256


def test_equals_the_reference():
    cases = [("causal and padding", {"value_dim": 5}), ("causal and packed", {"key_heads": 1})]
    for name, shape in cases:
        query, key, value = inputs(length=LENGTH, **shape)
        mask = masks(LENGTH)[name]
        actual = splash.attend(
            query, key, value, scale=0.4, mask=mask, bias=None, dropout=None, across_heads=None, interpret=True
        )
        expected = attend(query, key, value, scale=0.4, mask=mask, implementation="einsum")
        np.testing.assert_allclose(actual.context, expected.context, atol=1e-5)
        assert actual.probabilities is None
        assert jnp.isfinite(actual.context).all()
