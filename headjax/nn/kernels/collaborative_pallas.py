"""Our Pallas kernel for collaborative attention: flash attention with one key and queries mixed per head inside.

It compiles for TPUs and is tested by Pallas's interpreter; no TPU has run it.

A stock kernel needs every head's own query, `[batch, heads, query, shared_dim]`, and a key per value head, so its
memory grows with heads x shared_dim x length. Here the shared query and the one key are read block by block and mixed
as they are used, forward and backward; beside the context, one number per head and query is kept for the backward pass.

    logits_h = (s diag(m_h)) k^T + c_h,   context_h = softmax(logits_h) v_h

with the scale inside m. The gradients follow from P_h = exp(logits_h - lse_h), D_h = rowsum(dO_h * O_h) and
G_h = P_h * (dO_h v_h^T - D_h):

    dv_h = P_h^T dO_h,   dc_h = colsum(G_h),   dk = sum_h G_h^T (s diag(m_h)),
    ds = sum_h (G_h k) diag(m_h),   dm_h = sum over queries of s * (G_h k).

The online softmax and the recomputation are those of Dao et al. (2022, FlashAttention).

In a block, rows are queries and columns are keys. The numbers of each query (log-sum-exp, D) travel as a row
`[1, block]` and are turned into a column where they are used; the bias of each key stays a row. Sums are float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from headjax.nn.kernels import BLOCK, pad_axis, round_up, segment_ids
from headjax.nn.operands import Attended, AttentionInputs, Mask


def collaborative_attention(operands: AttentionInputs, block: int | None = None, interpret: bool = False) -> Attended:
    """Compute the contexts of one shared query `[batch, query, 1, shared_dim]` mixed by `[heads, shared_dim]`.

    A query that may see no key gets an average of some values; the reference gives the average of all.
    """
    query, key, value, scale, mask, bias, *_ = operands
    mixing: Any = operands.mixing  # `refusal` lets no call without it through
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
    blocking = Blocking(side=side, causal=mask.causal, interpret=interpret, window=mask.window)
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
def _context(blocking: Blocking, inputs: Inputs, segments: Segments) -> jax.Array:
    """`[batch, heads, query, value_dim]`."""
    return forward(blocking, inputs, segments)[0]


def _context_forward(blocking: Blocking, inputs: Inputs, segments: Segments) -> tuple[jax.Array, Any]:
    context, logsumexp = forward(blocking, inputs, segments)
    return context, (inputs, segments, context, logsumexp)


def _context_backward(blocking: Blocking, kept: Any, slope: jax.Array) -> tuple[Inputs, Segments]:
    inputs, segments, context, logsumexp = kept
    products = jnp.einsum("bhqv,bhqv->bhq", slope.astype(jnp.float32), context.astype(jnp.float32))[:, :, None, :]
    saved = (slope.astype(context.dtype), logsumexp, products)
    # The mixing's gradient stays in place while all queries of an example pass: [batch, heads, shared_dim].
    outputs = [("bqs", jnp.float32), ("bHs", jnp.float32)]
    of_queries = (_backward_queries_block, blocking, inputs, segments, saved)
    query, mixing = _launch(*of_queries, axes="bqhk", parallel=1, outputs=outputs, scratch=inputs.query.shape[-1:])
    outputs = [("bks", jnp.float32), ("bhkv", jnp.float32), ("bh.k", jnp.float32)]
    of_keys = (_backward_keys_block, blocking, inputs, segments, saved)
    key, value, bias = _launch(*of_keys, axes="bkhq", parallel=2, outputs=outputs)
    gradients = Inputs(query=query, key=key, value=value, mixing=mixing.sum(axis=0)[:, None, :], bias=bias)
    cast = jax.tree.map(lambda gradient, array: gradient.astype(array.dtype), gradients, inputs)
    nothing: Any = [np.zeros(array.shape, jax.dtypes.float0) for array in segments]
    return cast, Segments(*nothing)


_context.defvjp(_context_forward, _context_backward)


class Inputs(NamedTuple):
    """Differentiable inputs, lengths padded to whole blocks."""

    query: jax.Array  # [batch, query, shared_dim], shared by the heads
    key: jax.Array  # [batch, key, shared_dim]
    value: jax.Array  # [batch, heads, key, value_dim]
    mixing: jax.Array  # [heads, 1, shared_dim] float32, the scale included
    bias: jax.Array  # [batch, heads, 1, key] float32


class Segments(NamedTuple):
    """Who may attend to whom: equal numbers. `[batch, 1, query]` and `[batch, 1, key]`."""

    query: jax.Array
    key: jax.Array


_MASKED = -1e30
"""Logit of a forbidden pair: finite, so that a row of nothing else has no NaN."""


class Blocking(NamedTuple):
    """Division of a call into blocks; blocks of forbidden keys alone are skipped."""

    side: int  # length of a block, in queries and in keys
    causal: bool  # whether keys after the query are forbidden
    interpret: bool  # whether Pallas interprets the kernel instead of compiling it
    window: int | None = None  # distance from which on keys are forbidden


class _Tile(NamedTuple):
    """References to the blocks that logits are computed from."""

    query: Any
    key: Any
    mixing: Any
    bias: Any
    query_segments: Any
    key_segments: Any


def forward(blocking: Blocking, inputs: Inputs, segments: Segments) -> list[jax.Array]:
    """Contexts `[batch, heads, query, value_dim]` and log-sum-exps `[batch, heads, 1, query]` of the logits."""
    outputs = [("bhqv", inputs.value.dtype), ("bh.q", jnp.float32)]
    scratch = (1, 1, inputs.value.shape[-1])
    arrays = (blocking, inputs, segments)
    return _launch(_forward_block, *arrays, axes="bhqk", parallel=3, outputs=outputs, scratch=scratch)


def _launch(
    kernel: Callable[..., None],
    blocking: Blocking,
    inputs: Inputs,
    segments: Segments,
    saved: Sequence[jax.Array] = (),
    *,
    axes: str,
    parallel: int,
    outputs: Sequence[tuple[str, Any]],
    scratch: Sequence[int] = (),
) -> list[jax.Array]:
    """Run a kernel on the blocks of a grid of these axes, of which the first `parallel` may run in any order.

    Axes are (b)atch, (h)eads and (H) all of them at once, (q)ueries, (k)eys, (s)hared_dim, (v)alue_dim and one (.).
    """
    batch, heads, keys, value_dim = inputs.value.shape
    _, queries, shared_dim = inputs.query.shape
    sizes = {"b": batch, "h": heads, "q": queries, "k": keys, "H": heads, "s": shared_dim, "v": value_dim, ".": 1}
    block = sizes | {"b": 1, "h": 1, "q": blocking.side, "k": blocking.side}

    def spec(array: str) -> pl.BlockSpec:
        places = [axes.find(axis) for axis in array]
        return pl.BlockSpec(
            tuple(block[axis] for axis in array), lambda *at: tuple(0 if place < 0 else at[place] for place in places)
        )

    arrays = (inputs.query, inputs.key, inputs.mixing, inputs.bias, *segments, inputs.value, *saved)
    described = ("bqs", "bks", "h.s", "bh.k", "b.q", "b.k", "bhkv", "bhqv", "bh.q", "bh.q")
    order: Any = ("parallel",) * parallel + ("arbitrary",) * (len(axes) - parallel)
    results: list[jax.Array] = pl.pallas_call(
        functools.partial(kernel, blocking),
        grid=tuple(sizes[axis] // block[axis] for axis in axes),
        in_specs=[spec(array) for array in described[: len(arrays)]],
        out_specs=[spec(array) for array, _ in outputs],
        out_shape=[jax.ShapeDtypeStruct(tuple(sizes[axis] for axis in array), dtype) for array, dtype in outputs],
        scratch_shapes=[pltpu.VMEM((blocking.side, width), jnp.float32) for width in scratch],
        compiler_params=pltpu.CompilerParams(dimension_semantics=order),
        interpret=blocking.interpret,
        name=f"collaborative{kernel.__name__.removesuffix('_block')}",
    )(*arrays)
    return results


def _forward_block(blocking: Blocking, *refs: Any) -> None:
    tile, (value, context, logsumexp, highest, total, weighted) = _Tile(*refs[:6]), refs[6:]
    query_block, key_block = pl.program_id(2), pl.program_id(3)

    @pl.when(key_block == 0)
    def start() -> None:
        highest[...] = jnp.full(highest.shape, _MASKED, jnp.float32)
        total[...] = jnp.zeros(total.shape, jnp.float32)
        weighted[...] = jnp.zeros(weighted.shape, jnp.float32)

    @pl.when(_is_visible(blocking, query_block, key_block))
    def accumulate() -> None:
        logits, _, _ = _logits(blocking, tile, query_block, key_block)
        now = jnp.maximum(highest[...], logits.max(axis=1, keepdims=True))
        shrink, weights = jnp.exp(highest[...] - now), jnp.exp(logits - now)
        highest[...] = now
        total[...] = shrink * total[...] + weights.sum(axis=1, keepdims=True)
        weighted[...] = shrink * weighted[...] + _dot(weights.astype(value.dtype), value[0, 0], 1, 0)

    @pl.when(key_block == pl.num_programs(3) - 1)
    def finish() -> None:
        context[0, 0] = (weighted[...] / total[...]).astype(context.dtype)
        logsumexp[0, 0] = _transposed(highest[...] + jnp.log(total[...]), blocking.side)[:1]


def _backward_queries_block(blocking: Blocking, *refs: Any) -> None:
    tile, value, saved = _Tile(*refs[:6]), refs[6], refs[7:10]
    query_slope, mixing_slope, mixed_slope = refs[10:]
    query_block, head, key_block = pl.program_id(1), pl.program_id(2), pl.program_id(3)

    @pl.when((query_block == 0) & (head == 0) & (key_block == 0))
    def start_mixing() -> None:
        mixing_slope[...] = jnp.zeros(mixing_slope.shape, jnp.float32)

    @pl.when((head == 0) & (key_block == 0))
    def start_query() -> None:
        query_slope[...] = jnp.zeros(query_slope.shape, jnp.float32)

    @pl.when(key_block == 0)
    def start_mixed() -> None:
        mixed_slope[...] = jnp.zeros(mixed_slope.shape, jnp.float32)

    @pl.when(_is_visible(blocking, query_block, key_block))
    def accumulate() -> None:
        _, _, slope = _slopes(blocking, tile, value, saved, query_block, key_block)
        mixed_slope[...] += _dot(slope.astype(tile.key.dtype), tile.key[0], 1, 0)

    @pl.when(key_block == pl.num_programs(3) - 1)
    def finish() -> None:
        query_slope[0] += mixed_slope[...] * tile.mixing[0]
        of_mixing = jnp.sum(mixed_slope[...] * tile.query[0].astype(jnp.float32), axis=0, keepdims=True)
        mixing_slope[0, pl.ds(head, 1)] += of_mixing


def _backward_keys_block(blocking: Blocking, *refs: Any) -> None:
    tile, value, saved = _Tile(*refs[:6]), refs[6], refs[7:10]
    key_slope, value_slope, bias_slope = refs[10:]
    key_block, head, query_block = pl.program_id(1), pl.program_id(2), pl.program_id(3)

    @pl.when((head == 0) & (query_block == 0))
    def start_key() -> None:
        key_slope[...] = jnp.zeros(key_slope.shape, jnp.float32)

    @pl.when(query_block == 0)
    def start_head() -> None:
        value_slope[...] = jnp.zeros(value_slope.shape, jnp.float32)
        bias_slope[...] = jnp.zeros(bias_slope.shape, jnp.float32)

    @pl.when(_is_visible(blocking, query_block, key_block))
    def accumulate() -> None:
        mixed, weights, slope = _slopes(blocking, tile, value, saved, query_block, key_block)
        context_slope = saved[0]
        key_slope[0] += _dot(slope.astype(mixed.dtype), mixed, 0, 0)
        value_slope[0, 0] += _dot(weights.astype(context_slope.dtype), context_slope[0, 0], 0, 0)
        bias_slope[0, 0] += slope.sum(axis=0, keepdims=True)


def _logits(
    blocking: Blocking, tile: _Tile, query_block: jax.Array, key_block: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A block of one head's logits, its mixed queries `[query, shared_dim]`, and which of its pairs may attend."""
    mixed = (tile.query[0].astype(jnp.float32) * tile.mixing[0]).astype(tile.query.dtype)
    logits = _dot(mixed, tile.key[0], 1, 1) + tile.bias[0, 0]
    allowed = _transposed(tile.query_segments[0], blocking.side) == tile.key_segments[0]  # [query, key]
    rows = query_block * blocking.side + jax.lax.broadcasted_iota(jnp.int32, allowed.shape, 0)
    columns = key_block * blocking.side + jax.lax.broadcasted_iota(jnp.int32, allowed.shape, 1)
    if blocking.causal:
        allowed &= columns <= rows
    if blocking.window is not None:
        allowed &= jnp.abs(rows - columns) < blocking.window
    return jnp.where(allowed, logits, _MASKED), mixed, allowed


def _slopes(
    blocking: Blocking, tile: _Tile, value: Any, saved: Any, query_block: jax.Array, key_block: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A block's mixed queries, its probabilities P and its gradient G with respect to the logits."""
    context_slope, logsumexp, products = saved
    logits, mixed, allowed = _logits(blocking, tile, query_block, key_block)
    weights = jnp.exp(logits - _transposed(logsumexp[0, 0], blocking.side))
    weights_slope = _dot(context_slope[0, 0], value[0, 0], 1, 1)
    slope = weights * (weights_slope - _transposed(products[0, 0], blocking.side))
    return mixed, weights, jnp.where(allowed, slope, 0.0)


def _transposed(vector: jax.Array, side: int) -> jax.Array:
    """Return a row `[1, side]` as columns, or a column `[side, 1]` as rows, repeated to `[side, side]`.

    Whole tiles transpose on every TPU, single rows do not.
    """
    return jnp.transpose(jnp.broadcast_to(vector, (side, side)))


def _is_visible(blocking: Blocking, query_block: jax.Array, key_block: jax.Array) -> Any:
    """Whether any pair of the block may attend, as far as causality and the window say."""
    visible: Any = key_block <= query_block if blocking.causal else True
    if blocking.window is None:
        return visible
    nearest = (jnp.abs(query_block - key_block) - 1) * blocking.side + 1  # distance of a query and a key
    return visible & (nearest < blocking.window)


def _dot(left: jax.Array, right: jax.Array, left_axis: int, right_axis: int) -> jax.Array:
    """The float32 product of two matrices over one axis of each; float32 inputs are multiplied in full precision."""
    precision = jax.lax.Precision.HIGHEST if left.dtype == jnp.float32 else None
    dimensions = (((left_axis,), (right_axis,)), ((), ()))
    return jax.lax.dot_general(left, right, dimensions, precision=precision, preferred_element_type=jnp.float32)
