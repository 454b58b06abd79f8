"""`jax.nn.dot_product_attention` on XLA and on cuDNN."""

from __future__ import annotations

import functools
from typing import Literal

import jax
import jax.numpy as jnp

from headjax.attention.attended import AcrossHeads, Attended, Dropout
from headjax.attention.kernels.shapes import equal_kv_heads, pad_axis, round_up
from headjax.attention.mask import Mask

_DIM_MULTIPLE = {"xla": 1, "cudnn": 8}


def _attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    scale: float,
    mask: Mask | None,
    bias: jax.Array | None,
    dropout: Dropout | None,
    across_heads: AcrossHeads | None,
    implementation: Literal["xla", "cudnn"],
) -> Attended:
    """Queries, keys and values get one size by appended zeros, which change no dot product, and lose them after."""
    key, value = equal_kv_heads(key, value)
    size = round_up(max(query.shape[-1], value.shape[-1]), _DIM_MULTIPLE[implementation])
    # A causal mask alone is passed as such, so that the kernel may skip what it forbids.
    causal = mask is not None and mask.causal and mask.keys is None and mask.query_segments is None
    causal = causal and mask is not None and mask.query_offset is None
    allowed = None if mask is None or causal else mask.array(query.shape[1], key.shape[1])
    context = jax.nn.dot_product_attention(
        pad_axis(query, -1, size),
        pad_axis(key, -1, size),
        pad_axis(value, -1, size),
        bias=None if bias is None else bias.astype(query.dtype if implementation == "cudnn" else jnp.float32),
        mask=allowed,
        scale=scale,
        is_causal=causal,
        implementation=implementation,
    )
    return Attended(context[..., : value.shape[-1]], None)


attend_xla = functools.partial(_attend, implementation="xla")
attend_cudnn = functools.partial(_attend, implementation="cudnn")
