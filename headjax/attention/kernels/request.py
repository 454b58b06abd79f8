"""What one attention call asks of a kernel, as facts that are known before anything is computed."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax

from headjax.attention.attended import AcrossHeads, Dropout
from headjax.attention.mask import Mask

BiasKind = Literal["none", "keys", "full"]
"""No bias, one that is the same for every query (`[batch, heads, 1, key]`), or any other."""


class Request(NamedTuple):
    """One attention call without its arrays.

    Attributes:
        platform: `cpu`, `gpu` or `tpu`.
        devices: how many devices XLA may have to spread the call over by itself.
        dtype: type of queries, keys and values.
        queries, keys: lengths.
        heads, key_heads, value_heads: numbers of heads.
        qk_dim, value_dim: sizes of each query or key, and value.
        masks: which conditions the mask holds: `causal`, `keys`, `segments`, `offset`.
        bias: what kind of bias is added.
        dropout: whether probabilities are dropped.
        mixing: whether heads share one query, which each mixes (collaborative attention).
        across_heads: whether logits or weights are mapped across heads (talking heads).
        probabilities: whether somebody may look at the probabilities.
        generation: of the TPU, where it is known.
    """

    platform: str
    devices: int
    dtype: str
    queries: int
    keys: int
    heads: int
    key_heads: int
    value_heads: int
    qk_dim: int
    value_dim: int
    masks: frozenset[str]
    bias: BiasKind
    dropout: bool
    mixing: bool
    across_heads: bool
    probabilities: bool
    generation: int | None = None


def request_of(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask: Mask | None,
    bias: jax.Array | None,
    dropout: Dropout | None,
    mixing: jax.Array | None,
    across_heads: AcrossHeads | None,
    probabilities: bool,
    platform: str,
    devices: int,
    generation: int | None,
) -> Request:
    """The facts of a call to `attend`, whose arguments these are."""
    return Request(
        platform=platform,
        devices=devices,
        dtype=str(query.dtype),
        queries=query.shape[1],
        keys=key.shape[1],
        heads=query.shape[2] if mixing is None else mixing.shape[0],
        key_heads=key.shape[2],
        value_heads=value.shape[2],
        qk_dim=query.shape[-1],
        value_dim=value.shape[-1],
        masks=mask_conditions(mask),
        bias=_bias_kind(bias),
        dropout=dropout is not None and dropout.rate > 0.0,
        mixing=mixing is not None,
        across_heads=across_heads is not None,
        probabilities=probabilities,
        generation=generation,
    )


def mask_conditions(mask: Mask | None) -> frozenset[str]:
    """Names of the conditions that a mask holds."""
    if mask is None:
        return frozenset()
    held = {
        "causal": mask.causal,
        "offset": mask.causal and mask.query_offset is not None,
        "keys": mask.keys is not None,
        "segments": mask.query_segments is not None and mask.key_segments is not None,
    }
    return frozenset(name for name, is_held in held.items() if is_held)


def _bias_kind(bias: jax.Array | None) -> BiasKind:
    if bias is None:
        return "none"
    return "keys" if bias.shape[2] == 1 else "full"
