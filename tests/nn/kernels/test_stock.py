"""The kernels of JAX against the reference, and kernels spread over a mesh; test_compile.py compiles for a TPU."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from headjax.nn.kernels import cudnn_attention, splash_attention
from headjax.nn.operands import AttentionInputs
from tests.closeness import assert_close

BATCH, QUERIES, KEYS, HEADS = 2, 12, 12, 4
SUMS = 8 + 2 * KEYS
"""Terms on the way to a context: logits of `inputs`, softmax and context over the keys. A gradient goes it twice."""


def normal(*shape: int, seed: int) -> Any:
    """Standard normal numbers."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def inputs(
    *, qk_dim: int = 8, value_dim: int = 8, key_heads: int = HEADS, value_heads: int = HEADS, length: int = KEYS
) -> tuple[Any, Any, Any]:
    """Query, key and value."""
    return (
        normal(BATCH, length, HEADS, qk_dim, seed=0),
        normal(BATCH, length, key_heads, qk_dim, seed=1),
        normal(BATCH, length, value_heads, value_dim, seed=2),
    )


def masks(length: int = KEYS) -> dict[str, headjax.nn.Mask]:
    """Masks of every condition; every query may see some key."""
    present = np.random.default_rng(3).uniform(size=(BATCH, length)) < 0.7
    present[:, 0] = True
    segments = jnp.asarray(np.repeat([[0, 1]], BATCH, axis=0).repeat(length // 2, axis=1))
    return {
        "none": headjax.nn.Mask(),
        "causal": headjax.nn.Mask(causal=True),
        "padding": headjax.nn.Mask(keys=jnp.asarray(present)),
        "causal and padding": headjax.nn.Mask(causal=True, keys=jnp.asarray(present)),
        "causal and packed": headjax.nn.Mask(causal=True, query_segments=segments, key_segments=segments),
        "window": headjax.nn.Mask(window=3),
        "causal and window": headjax.nn.Mask(causal=True, window=3),
    }


@functools.partial(jax.jit, static_argnames="implementation")
def context(query, key, value, mask, bias, implementation):
    return headjax.nn.attend(query, key, value, scale=0.4, mask=mask, bias=bias, implementation=implementation).context


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"value_dim": 5},
        {"value_dim": 11},
        {"key_heads": 2, "value_heads": 2},
        {"key_heads": 1},
        {"key_heads": 4, "value_heads": 2},
    ],
    ids=str,
)
def test_xla_equals_the_reference_in_every_shape(shape):
    query, key, value = inputs(**shape)
    mask = masks()["causal and padding"]
    results = [context(query, key, value, mask, None, name) for name in ("einsum", "xla")]
    assert_close(results[1], results[0], sums=SUMS)


@pytest.mark.parametrize("name", masks())
def test_xla_equals_the_reference_under_every_mask(name):
    query, key, value = inputs()
    bias = normal(1, HEADS, KEYS, KEYS, seed=5)
    results = [context(query, key, value, masks()[name], bias, kernel) for kernel in ("einsum", "xla")]
    assert_close(results[1], results[0], sums=SUMS)


def test_xla_with_a_query_offset_and_a_query_that_sees_nothing():
    query, key, value = inputs()
    hidden = headjax.nn.Mask(keys=jnp.zeros((BATCH, KEYS), bool))
    offset = headjax.nn.Mask(causal=True, query_offset=jnp.asarray(7))
    for mask, queries in ((hidden, query), (offset, query[:, :1])):
        results = [context(queries, key, value, mask, None, kernel) for kernel in ("einsum", "xla")]
        assert_close(results[1], results[0], sums=SUMS)


def test_xla_has_the_references_gradients():
    query, key, value = inputs(value_dim=5, key_heads=1)
    mask = masks()["causal"]

    def loss(query, key, value, implementation):
        return jnp.sum(jnp.sin(context(query, key, value, mask, None, implementation)))

    gradients = [jax.grad(loss, argnums=(0, 1, 2))(query, key, value, name) for name in ("einsum", "xla")]
    for expected, actual in zip(*gradients, strict=True):
        assert_close(actual, expected, sums=2 * SUMS)


def test_cudnn_equals_the_reference_on_a_gpu():
    if jax.default_backend() != "gpu":
        with pytest.raises(headjax.KernelError, match="cudnn runs on gpu"):
            headjax.nn.attend(*inputs(), scale=0.4, implementation="cudnn")
        pytest.skip(f"cuDNN needs a GPU, and this is {jax.default_backend()}")
    for shape in ({}, {"value_dim": 5}, {"key_heads": 1}):
        query, key, value = (array.astype(jnp.bfloat16) for array in inputs(qk_dim=64, length=64, **shape))
        for mask in masks(64).values():
            results = [context(query, key, value, mask, None, name) for name in ("einsum", "cudnn")]
            np.testing.assert_allclose(
                np.asarray(results[1], np.float32), np.asarray(results[0], np.float32), atol=5e-2
            )


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_a_bias_that_hides_keys_is_finite_in_half_precision(dtype, monkeypatch):
    """Modules hide keys by the least number of float32; where it were infinite, a hidden query would get NaN."""
    seen = []
    monkeypatch.setattr(jax.nn, "dot_product_attention", lambda query, *_, bias, **options: seen.append(bias) or query)
    query, key, value = (array.astype(dtype) for array in inputs())
    hidden = jnp.full((BATCH, HEADS, KEYS, KEYS), jnp.finfo(jnp.float32).min)
    cudnn_attention(AttentionInputs(query, key, value, scale=0.4, bias=hidden))
    assert seen[0].dtype == dtype
    assert bool(jnp.isfinite(seen[0]).all())


LENGTH = 256


def test_equals_the_reference():
    query, key, value = inputs(length=LENGTH, value_dim=5, key_heads=1)
    packed, padded = masks(LENGTH)["causal and packed"], masks(LENGTH)["causal and padding"]
    # Each segment keeps its first key, so that every query sees one.
    mask = dataclasses.replace(packed, keys=padded.keys.at[:, LENGTH // 2].set(True))
    assert_splash_equals_the_reference(query, key, value, mask)


@pytest.mark.parametrize("causal", [False, True])
def test_splash_with_a_window_equals_the_reference(causal):
    assert_splash_equals_the_reference(*inputs(length=LENGTH), headjax.nn.Mask(causal=causal, window=40))


def assert_splash_equals_the_reference(query, key, value, mask):
    actual = splash_attention(AttentionInputs(query, key, value, scale=0.4, mask=mask), interpret=True)
    assert_close(actual.context, context(query, key, value, mask, None, "einsum"), sums=8 + 2 * LENGTH)
    assert actual.probabilities is None


SPREAD_BATCH, SPREAD_LENGTH, SHARED, VALUES = 2, 5, 8, 4


def loss(arrays, mask, implementation):
    query, key, value, mixing, bias = arrays
    attended = headjax.nn.attend(
        query, key, value, scale=0.3, mask=mask, bias=bias, mixing=mixing, implementation=implementation
    )
    return jnp.sum(jnp.sin(attended.context)), attended.context


@pytest.mark.parametrize("heads", [4, 3], ids=["heads that divide", "heads that do not"])
def test_results_and_gradients_are_those_of_one_device(heads):
    arrays = (
        normal(SPREAD_BATCH, SPREAD_LENGTH, 1, SHARED, seed=0),
        normal(SPREAD_BATCH, SPREAD_LENGTH, 1, SHARED, seed=1),
        normal(SPREAD_BATCH, SPREAD_LENGTH, heads, VALUES, seed=2),
        normal(heads, SHARED, seed=3),
        normal(1, heads, 1, SPREAD_LENGTH, seed=4),
    )
    mask = headjax.nn.Mask(causal=True, keys=jnp.asarray([[True] * 5, [True] * 3 + [False] * 2]))
    step = jax.jit(jax.grad(loss, has_aux=True), static_argnums=2)
    expected = step(arrays, mask, "einsum")
    with jax.set_mesh(headjax.MeshConfig(data=2, fsdp=1, model=2).build(jax.devices()[:4])):
        actual = step(arrays, mask, "collaborative_pallas")
    for one, several in zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True):
        assert_close(several, one, sums=2 * SUMS)
    spread = actual[1].sharding.shard_shape(actual[1].shape)
    assert spread == (SPREAD_BATCH // 2, SPREAD_LENGTH, 2 if heads == 4 else heads, VALUES)
