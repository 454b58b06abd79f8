"""`jax.nn.dot_product_attention` against the reference, with sizes and heads it does not know itself."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headjax.attention import Mask, attend
from headjax.core.errors import KernelError
from tests.attention.kernels.calls import BATCH, HEADS, KEYS, SUMS, inputs, masks, normal
from tests.closeness import assert_close


@functools.partial(jax.jit, static_argnames="implementation")
def context(query, key, value, mask, bias, implementation):
    return attend(query, key, value, scale=0.4, mask=mask, bias=bias, implementation=implementation).context


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
    hidden = Mask(keys=jnp.zeros((BATCH, KEYS), bool))
    offset = Mask(causal=True, query_offset=jnp.asarray(7))
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
        with pytest.raises(KernelError, match="cudnn cannot compute this: it runs on gpu, and this is cpu"):
            attend(*inputs(), scale=0.4, implementation="cudnn")
        pytest.skip(f"cuDNN needs a GPU, and this is {jax.default_backend()}")
    for shape in ({}, {"value_dim": 5}, {"key_heads": 1}):
        query, key, value = (array.astype(jnp.bfloat16) for array in inputs(qk_dim=64, length=64, **shape))
        for mask in masks(64).values():
            results = [context(query, key, value, mask, None, name) for name in ("einsum", "cudnn")]
            np.testing.assert_allclose(
                np.asarray(results[1], np.float32), np.asarray(results[0], np.float32), atol=5e-2
            )
