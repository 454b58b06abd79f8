"""The blocks of the collaborative kernel: their log-sum-exps are those of the whole matrix of logits."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from headjax.attention.kernels import collaborative_pallas as blocks
from tests.closeness import assert_close

BATCH, LENGTH, HEADS, SHARED, VALUES = 2, 16, 3, 4, 5


def normal(*shape):
    return jnp.asarray(np.random.default_rng(sum(shape)).standard_normal(shape), jnp.float32)


def test_context_and_log_sum_exp_over_several_blocks():
    inputs = blocks.Inputs(
        query=normal(BATCH, LENGTH, SHARED),
        key=normal(BATCH, LENGTH, SHARED) / 2.0,
        value=normal(BATCH, HEADS, LENGTH, VALUES),
        mixing=normal(HEADS, 1, SHARED),
        bias=normal(BATCH, HEADS, 1, LENGTH),
    )
    same = jnp.zeros((BATCH, 1, LENGTH), jnp.int32)
    blocking = blocks.Blocking(side=8, causal=False, interpret=True)
    context, logsumexp = blocks.forward(blocking, inputs, blocks.Segments(same, same))
    query, key, value, mixing, bias = map(np.asarray, inputs)
    logits = np.einsum("bqs,hs,bks->bhqk", query, mixing[:, 0], key) + bias
    expected = np.log(np.exp(logits).sum(axis=-1))
    assert_close(logsumexp.reshape(BATCH, HEADS, LENGTH), expected, sums=SHARED + 2 * LENGTH)
    weights = np.exp(logits - expected[..., None])
    assert_close(context, np.einsum("bhqk,bhkv->bhqv", weights, value), sums=SHARED + 3 * LENGTH)
