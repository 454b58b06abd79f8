"""Our collaborative kernel, interpreted, against the reference; test_compile.py compiles it for a TPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from headjax.nn.kernels.collaborative_pallas import collaborative_attention
from headjax.nn.operands import AttentionInputs
from tests.closeness import assert_close
from tests.nn.formulations import FORMULATIONS, attended_by, random_inputs, random_params

BATCH, QUERIES, KEYS, HEADS, SHARED, VALUES = 2, 21, 27, 3, 16, 6
SCALE = 0.3
SUMS = SHARED + 2 * KEYS
"""Terms on the way to a context: logits, softmax and context over the keys. A gradient goes it twice."""


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).standard_normal(shape), jnp.float32)


def inputs() -> tuple[jax.Array, ...]:
    """Query, key, value, mixing and content bias; the lengths fill no whole number of blocks."""
    return (
        normal(BATCH, QUERIES, 1, SHARED),
        normal(BATCH, KEYS, 1, SHARED),
        normal(BATCH, KEYS, HEADS, VALUES),
        normal(HEADS, SHARED),
        normal(BATCH, HEADS, 1, KEYS),
    )


def reference(query, key, value, mixing, bias, mask):
    return headjax.nn.attend(
        query, key, value, scale=SCALE, mask=mask, bias=bias, mixing=mixing, implementation="einsum"
    ).context


def ours(query, key, value, mixing, bias, mask):
    operands = AttentionInputs(query, key, value, SCALE, mask, bias, mixing=mixing)
    return collaborative_attention(operands, block=8, interpret=True).context


@functools.cache
def present() -> np.ndarray:
    keys = np.random.default_rng(0).uniform(size=(BATCH, KEYS)) < 0.7
    keys[:, 0] = True
    return keys


def packed() -> headjax.nn.Mask:
    of_queries = np.repeat(np.arange(2), (9, 12))[None].repeat(BATCH, axis=0)
    of_keys = np.repeat(np.arange(2), (9, 18))[None].repeat(BATCH, axis=0)
    return headjax.nn.Mask(causal=True, query_segments=jnp.asarray(of_queries), key_segments=jnp.asarray(of_keys))


@pytest.mark.parametrize("name", ["padding", "causal and padding", "causal and packed", "causal and window"])
def test_context_and_every_gradient_equal_the_references(name):
    mask = {
        "padding": headjax.nn.Mask(keys=jnp.asarray(present())),
        "causal and padding": headjax.nn.Mask(causal=True, keys=jnp.asarray(present())),
        "causal and packed": packed(),
        "causal and window": headjax.nn.Mask(causal=True, window=5),
    }[name]
    weights = normal(BATCH, QUERIES, HEADS, VALUES)

    def with_gradients(compute):
        def loss(*arrays):
            context = compute(*arrays, mask)
            return jnp.sum(weights * context), context

        return jax.jit(jax.grad(loss, argnums=tuple(range(5)), has_aux=True))(*inputs())

    (expected_slopes, expected), (slopes, context) = with_gradients(reference), with_gradients(ours)
    assert_close(context, expected, sums=SUMS)
    for slope, expected_slope in zip(slopes, expected_slopes, strict=True):
        assert_close(slope, expected_slope, sums=2 * SUMS)


def test_without_bias_and_mask_in_bfloat16():
    query, key, value, mixing, _ = (array.astype(jnp.bfloat16) for array in inputs())
    expected = reference(*(a.astype(jnp.float32) for a in (query, key, value, mixing)), None, None)
    actual = jax.jit(functools.partial(ours, bias=None, mask=None))(query, key, value, mixing)
    assert actual.dtype == jnp.bfloat16
    assert float(jnp.abs(actual.astype(jnp.float32) - expected).max()) < 0.05


def test_a_query_that_sees_no_key_is_finite():
    arrays = inputs()
    mask = headjax.nn.Mask(keys=jnp.zeros((BATCH, KEYS), bool))
    slopes = jax.jit(jax.grad(lambda *a: jnp.sum(ours(*a, mask)), argnums=tuple(range(5))))(*arrays)
    assert all(bool(jnp.isfinite(slope).all()) for slope in slopes)


def test_the_formulation_reaches_it_by_name():
    attention = FORMULATIONS["collaborative"].replace(projection_bias=False)
    params, x = random_params(attention), jnp.asarray(random_inputs())

    @functools.partial(jax.jit, static_argnums=0)
    def attended(kernel, params, x):
        call = headjax.nn.AttentionOptions(mask=headjax.nn.Mask(causal=True), implementation=kernel)
        return attended_by(attention, params, x, call)

    expected, actual = (attended(kernel, params, x) for kernel in ("einsum", "collaborative_pallas"))
    assert actual.probabilities is None
    assert_close(actual.context, expected.context, sums=SUMS)
