"""Functions that state their own derivative: same values, same slopes, fewer arrays kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headjax.core.derivatives import gelu, softmax, standardised
from tests.closeness import assert_close, tolerance


def plain_norm(x):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / jnp.sqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + 1e-5)


PAIRS = {
    "gelu": (gelu, lambda x: jax.nn.gelu(x, approximate=False), 1),
    "softmax": (softmax, lambda x: jnp.exp(x) / jnp.exp(x).sum(axis=-1, keepdims=True), 1),
    "standardised": (lambda x: standardised(x, 1e-5), plain_norm, 1),
}
"""By name: the function, its definition by other means, and how many arrays of its input's size a backward keeps."""


@pytest.fixture(params=PAIRS)
def pair(request):
    return PAIRS[request.param]


X = 2.0 * jax.random.normal(jax.random.key(0), (4, 5, 16))
CHANGE = jax.random.normal(jax.random.key(1), X.shape)


def test_values_are_those_of_the_definition(pair):
    stated, defined, _ = pair
    assert_close(stated(X), defined(X), sums=X.shape[-1])


def test_gradients_are_those_of_the_definition_differentiated_step_by_step(pair):
    stated, defined, _ = pair
    slopes = [jax.vjp(f, X)[1](CHANGE)[0] for f in (stated, defined)]
    assert_close(*slopes, sums=2 * X.shape[-1])


def test_they_can_be_differentiated_forwards_and_twice(pair):
    stated, defined, _ = pair
    tangents = [jax.jvp(f, (X,), (CHANGE,))[1] for f in (stated, defined)]
    assert_close(*tangents, sums=2 * X.shape[-1])
    small, change = X[0, :1], CHANGE[0, :1]
    curvatures = [
        jax.jvp(jax.grad(lambda x, f=f: (f(x) * change).sum()), (small,), (change,))[1] for f in (stated, defined)
    ]
    assert_close(*curvatures, sums=4 * X.shape[-1])


def test_a_backward_pass_keeps_one_array(pair):
    stated, _, kept = pair
    residuals = jax.tree.leaves(jax.eval_shape(lambda x: jax.vjp(stated, x)[1], X))
    assert sum(array.size == X.size for array in residuals) == kept


def test_gelu_of_bfloat16_is_computed_in_float32():
    x = X.astype(jnp.bfloat16)
    expected = jax.nn.gelu(x.astype(jnp.float32), approximate=False).astype(jnp.bfloat16)
    assert gelu(x).dtype == jnp.bfloat16
    # Rounding errors of float32 move a value across the border between two neighbours of bfloat16, which are at most
    # an epsilon apart; values that the error function makes small have float32's errors of the larger terms before.
    apart, small = float(jnp.finfo(jnp.bfloat16).eps), tolerance(1) * float(jnp.abs(x).max())
    np.testing.assert_allclose(gelu(x).astype(np.float32), expected.astype(np.float32), rtol=apart, atol=small)


def test_far_from_zero_gelu_is_its_input_or_nothing():
    x = jnp.asarray([-40.0, -12.0, 0.0, 12.0, 40.0])
    assert_close(gelu(x), [0.0, 0.0, 0.0, 12.0, 40.0], sums=1)
    assert_close(jax.vmap(jax.grad(gelu))(x), [0.0, 0.0, 0.5, 1.0, 1.0], sums=1)
