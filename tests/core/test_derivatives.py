"""Normalisations by their formulas; functions that state their own derivative, and keep fewer arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from headjax.core.modules import bind
from headjax.nn.attend import softmax
from headjax.nn.norms import OffsetRMSNorm, standardised
from headjax.nn.projections import gelu
from tests.closeness import assert_close, tolerance


def plain_norm(x):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / jnp.sqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + 1e-5)


PAIRS = {
    "gelu": (gelu, lambda x: jax.nn.gelu(x, approximate=False)),
    "softmax": (softmax, lambda x: jnp.exp(x) / jnp.exp(x).sum(axis=-1, keepdims=True)),
    "standardised": (lambda x: standardised(x, 1e-5), plain_norm),
}
"""By name: the function, and its definition by other means, which is differentiated step by step."""

X, CHANGE = np.random.default_rng(0).standard_normal((2, 4, 5, 16)).astype(np.float32)
X *= 2.0


def everything(function):
    """Values, gradients, tangents and curvatures, in one program."""

    @jax.jit
    def computed(x, change):
        value, pull = jax.vjp(function, x)
        small, part = x[0, :1], change[0, :1]
        curvature = jax.jvp(jax.grad(lambda x: (function(x) * part).sum()), (small,), (part,))[1]
        return value, pull(change)[0], jax.jvp(function, (x,), (change,))[1], curvature

    return computed(X, CHANGE)


@pytest.mark.parametrize("name", PAIRS)
def test_values_and_derivatives_are_those_of_the_definition_and_one_array_is_kept(name):
    stated, defined = (everything(function) for function in PAIRS[name])
    for found, expected, terms in zip(stated, defined, (1, 2, 2, 4), strict=True):
        assert_close(found, expected, sums=terms * X.shape[-1])
    residuals = jax.tree.leaves(jax.eval_shape(lambda x: jax.vjp(PAIRS[name][0], x)[1], X))
    assert sum(array.size == X.size for array in residuals) == 1


def test_gelu_of_bfloat16_is_computed_in_float32():
    x = jnp.asarray(X, jnp.bfloat16)
    expected = jax.nn.gelu(x.astype(jnp.float32), approximate=False).astype(jnp.bfloat16)
    assert gelu(x).dtype == jnp.bfloat16
    # Rounding errors of float32 move a value across the border between two neighbours of bfloat16, which are at most
    # an epsilon apart; values that the error function makes small have float32's errors of the larger terms before.
    apart, small = float(jnp.finfo(jnp.bfloat16).eps), tolerance(1) * np.abs(X).max()
    np.testing.assert_allclose(gelu(x).astype(np.float32), expected.astype(np.float32), rtol=apart, atol=small)


INPUTS = np.random.default_rng(0).normal(1.0, 2.0, (3, 8)).astype(np.float32)
WIDE = INPUTS.astype(np.float64)
SCALE, BIAS = np.linspace(0.5, 2.0, 8, dtype=np.float32), np.linspace(-1.0, 1.0, 8, dtype=np.float32)
CENTRED = (WIDE - WIDE.mean(-1, keepdims=True)) / np.sqrt(WIDE.var(-1, keepdims=True) + 1e-3)
DIVIDED = WIDE / np.sqrt(np.square(WIDE).mean(-1, keepdims=True) + 1e-3)


@pytest.mark.parametrize(
    ("norm", "params", "expected"),
    [
        (headjax.nn.LayerNorm(1e-3), {"scale": SCALE, "bias": BIAS}, SCALE * CENTRED + BIAS),
        (headjax.nn.RMSNorm(1e-3), {"scale": SCALE}, SCALE * DIVIDED),
        (OffsetRMSNorm(1e-3), {"scale": BIAS}, (1.0 + BIAS) * DIVIDED),
    ],
    ids=lambda value: type(value).__name__,
)
def test_norms_by_their_formulas(norm, params, expected):
    assert_close(jax.jit(bind(norm.module(8), params))(INPUTS), expected, sums=8)


def test_a_norm_is_scaled_and_an_offset_is_a_gain_that_starts_at_one():
    norm = bind(OffsetRMSNorm(1e-3).module(8), {"scale": BIAS})
    assert_close(norm.scaled(3.0)(INPUTS), 3.0 * (1.0 + BIAS) * DIVIDED, sums=8)
    assert_close(
        bind(headjax.nn.RMSNorm(1e-3).module(8), {"scale": norm.gain()}).scaled(3.0)(INPUTS),
        norm.scaled(3.0)(INPUTS),
        sums=8,
    )
    scale = OffsetRMSNorm().module(8).scale
    assert not np.any(scale.init(jax.random.key(0), scale, np.float32))
