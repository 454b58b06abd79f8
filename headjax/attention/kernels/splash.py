"""Pallas splash attention: flash attention for TPUs that skips masked blocks."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from headjax.attention.attended import AcrossHeads, Attended, Dropout
from headjax.attention.kernels.shapes import BLOCK, equal_kv_heads, segment_ids
from headjax.attention.mask import Mask


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    scale: float,
    mask: Mask | None,
    bias: jax.Array | None,
    dropout: Dropout | None,
    across_heads: AcrossHeads | None,
    interpret: bool = False,
) -> Attended:
    """Padding is a segment of its own that no query belongs to.

    A query that may see no key at all gets some average of values, not that of all keys as from the reference.
    `interpret` runs the kernel's steps one by one instead of compiling it for a TPU.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    key, value = equal_kv_heads(key, value)
    batch, queries, heads, _ = query.shape
    shape = (queries, key.shape[1])
    visible = masks.CausalMask(shape) if mask is not None and mask.causal else masks.FullMask(shape)
    kernel = splash.make_splash_mha_single_device(
        masks.MultiHeadMask([visible] * heads), block_sizes=_block_sizes(splash, *shape), interpret=interpret
    )
    segments = _segments(splash, mask, batch, *shape)
    by_head = [jnp.swapaxes(array, 1, 2) for array in (query * scale, key, value)]
    context = jax.vmap(kernel, in_axes=(0, 0, 0, None if segments is None else 0))(*by_head, segments)
    return Attended(jnp.swapaxes(context, 1, 2), None)


def _block_sizes(splash: object, queries: int, keys: int) -> object:
    q, k = _block(queries), _block(keys)
    return splash.BlockSizes(  # type: ignore[attr-defined]
        block_q=q,
        block_kv=k,
        block_kv_compute=k,
        block_q_dkv=q,
        block_kv_dkv=k,
        block_kv_dkv_compute=k,
        block_q_dq=q,
        block_kv_dq=k,
    )


def _block(length: int) -> int:
    return next(size for size in (512, 256, BLOCK) if length % size == 0)


def _segments(splash: object, mask: Mask | None, batch: int, queries: int, keys: int) -> object | None:
    if mask is None or (mask.keys is None and mask.query_segments is None):
        return None
    of_queries, of_keys = segment_ids(mask, batch, queries, keys)
    return splash.SegmentIds(of_queries, of_keys)  # type: ignore[attr-defined]
