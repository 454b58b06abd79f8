"""Our Pallas kernel for collaborative attention: flash attention with one key and queries mixed per head inside.

A stock kernel needs every head's own query, `[batch, heads, query, shared_dim]`, and a key per value head, so its
memory grows with heads x shared_dim x length. Here the shared query and the one key are read block by block and mixed
as they are used, forward and backward; beside the context, one number per head and query is kept for the backward pass.

    logits_h = (s diag(m_h)) k^T + c_h,   context_h = softmax(logits_h) v_h

with the scale inside m. The gradients follow from P_h = exp(logits_h - lse_h), D_h = rowsum(dO_h * O_h) and
G_h = P_h * (dO_h v_h^T - D_h):

    dv_h = P_h^T dO_h,   dc_h = colsum(G_h),   dk = sum_h G_h^T (s diag(m_h)),
    ds = sum_h (G_h k) diag(m_h),   dm_h = sum over queries of s * (G_h k).

The online softmax and the recomputation are those of Dao et al. (2022, FlashAttention).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from headjax.attention.kernels import collaborative_blocks as blocks
from headjax.attention.kernels.choose import BLOCK
from headjax.attention.kernels.collaborative_blocks import Inputs, Segments
from headjax.attention.kernels.stock import pad_axis, round_up, segment_ids
from headjax.attention.operands import Attended, Mask, Operands
from headjax.core.errors import KernelError


def collaborative_attention(operands: Operands, block: int | None = None, interpret: bool = False) -> Attended:
    """Compute the contexts of one shared query `[batch, query, 1, shared_dim]` mixed by `[heads, shared_dim]`.

    A query that may see no key gets an average of some values; the reference gives the average of all.

    Args:
        operands: with `mixing`, and without dropout, as the capabilities say.
        block: side of the blocks; None is 128, or 256 for long sequences.
        interpret: whether the kernel runs step by step instead of being compiled for a TPU.

    Raises:
        KernelError: the operands have no mixing.
    """
    query, key, value, scale, mask, bias, _, mixing = operands
    if mixing is None:
        raise KernelError("mixing: collaborative_pallas needs one shared query that heads mix")
    batch, queries, _, _ = query.shape
    keys = key.shape[1]
    side = block or (2 * BLOCK if min(queries, keys) >= 8 * BLOCK else BLOCK)
    long_queries, long_keys = round_up(queries, side), round_up(keys, side)
    mask = mask or Mask()
    of_queries, of_keys = segment_ids(mask, batch, queries, keys)
    # Keys appended to fill the last block are padding; appended queries are computed and cut off.
    present = jnp.arange(long_keys)[None, :] < keys
    of_keys = jnp.where(present, pad_axis(of_keys, 1, long_keys), -1)
    key_bias = jnp.zeros((batch, mixing.shape[0], 1, keys), jnp.float32) if bias is None else bias.astype(jnp.float32)
    key_bias = jnp.broadcast_to(key_bias, (batch, mixing.shape[0], 1, keys))
    blocking = blocks.Blocking(side=side, causal=mask.causal, interpret=interpret, window=mask.window)
    context = _context(
        blocking,
        Inputs(
            query=pad_axis(query[:, :, 0], 1, long_queries),
            key=pad_axis(key[:, :, 0], 1, long_keys),
            value=pad_axis(jnp.swapaxes(value, 1, 2), 2, long_keys),
            mixing=(scale * mixing.astype(jnp.float32))[:, None, :],
            bias=pad_axis(key_bias, 3, long_keys),
        ),
        Segments(pad_axis(of_queries, 1, long_queries)[:, None, :], of_keys[:, None, :]),
    )
    return Attended(jnp.swapaxes(context[:, :, :queries], 1, 2), None)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _context(blocking: blocks.Blocking, inputs: Inputs, segments: Segments) -> jax.Array:
    """`[batch, heads, query, value_dim]`."""
    return blocks.forward(blocking, inputs, segments)[0]


def _context_forward(blocking: blocks.Blocking, inputs: Inputs, segments: Segments) -> tuple[jax.Array, Any]:
    context, logsumexp = blocks.forward(blocking, inputs, segments)
    return context, (inputs, segments, context, logsumexp)


def _context_backward(blocking: blocks.Blocking, kept: Any, slope: jax.Array) -> tuple[Inputs, Segments]:
    inputs, segments, context, logsumexp = kept
    products = jnp.einsum("bhqv,bhqv->bhq", slope.astype(jnp.float32), context.astype(jnp.float32))[:, :, None, :]
    saved = (slope.astype(context.dtype), logsumexp, products)
    query, mixing = blocks.backward_queries(blocking, inputs, segments, saved)
    key, value, bias = blocks.backward_keys(blocking, inputs, segments, saved)
    gradients = Inputs(query=query, key=key, value=value, mixing=mixing.sum(axis=0)[:, None, :], bias=bias)
    cast = jax.tree.map(lambda gradient, array: gradient.astype(array.dtype), gradients, inputs)
    return cast, Segments(*(_no_gradient(array) for array in segments))


def _no_gradient(integers: jax.Array) -> Any:
    return np.zeros(integers.shape, dtype=jax.dtypes.float0)


_context.defvjp(_context_forward, _context_backward)
