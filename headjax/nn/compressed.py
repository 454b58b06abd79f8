"""Any formulation over a short latent of the attended sequence, from which its keys and values are rebuilt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from headjax.core.errors import require
from headjax.core.fields import Size
from headjax.core.kind import Kind
from headjax.core.tensors import weight, with_axes
from headjax.nn.attend import AttentionOptions
from headjax.nn.module import AttentionModule, formulation
from headjax.nn.multi_head import GroupedAttention
from headjax.nn.operands import Attended, KeyValues
from headjax.nn.projections import into_heads
from headjax.nn.rotary import positions_or_count

READING = ("key", "value", "content_bias", "latent", "rotary_key")
"""Weights of the formulations that read the attended sequence."""


@formulation("compressed")
class CompressedAttention(AttentionModule):
    """Any formulation whose keys and values are computed from a latent of the attended sequence.

        c = y W_C [rank],   output = inner(x, c)

    The formulation inside reads c in place of y: its key and value weights map from `rank`. With grouped attention
    inside,

        k_g = turn(norm(c W_K^g + b_K^g)),   v_g = c W_V^g + b_V^g

    so keys are rebuilt first, then normalised, then turned. With rank = kv_heads * (head_dim + value_dim) any grouped
    layer can be written so exactly, rotary embeddings and normalised keys included.

    A decoding cache holds c and the positions. The price is that each step rebuilds the keys of all tokens;
    `LatentAttention` attends to c itself where keys do not turn. Values need no rebuilding for a single query, as in
    decoding, since sum_j p_j v_j = (sum_j p_j c_j) W_V + b_V: heads of multi-head and grouped attention then take the
    mean of c, and map it by W_V^g.

        >>> inner = headjax.Kind(headjax.MultiHeadAttention, num_heads=4, head_dim=4)
        >>> layer = headjax.CompressedAttention(16, inner=inner, rank=8, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((1, 3, 16))).shape
        (1, 3, 16)

    Args:
        inner: the formulation; num_heads and head_ids are its own.
        rank: size of the latent c.
        setting: see `AttentionModule`.
    """

    def __init__(self, width: int, memory_width: int | None = None, *, inner: Kind, rank: Size, **setting: Any) -> None:
        super().__init__(width, memory_width, **setting)
        self.latent = weight((self.memory_width, rank), ("embed", "latent"))
        self.inner = inner.module(width, rank)
        for name in READING:
            read = getattr(self.inner, name, None)
            if read is not None:
                setattr(self.inner, name, with_axes(read, ("latent", *read.out_sharding[1:])))

    @classmethod
    def check_options(cls, kind: Kind) -> None:
        require(kind.inner.num_heads > 0, "inner", "has no heads, so that there is nothing around them")
        require(kind.inner.of is not CompressedAttention, "inner", "is compressed already")
        super().check_options(kind)

    @property
    def output(self) -> Any:
        """The map of the module inside from its contexts to the stream."""
        return self.inner.output

    @property
    def num_heads(self) -> int:
        return self.kind.inner.num_heads

    @property
    def ids(self) -> tuple[int, ...]:
        return self.kind.inner.ids

    @property
    def groups(self) -> tuple[int, ...]:
        return self.kind.inner.groups

    def changed(self, heads: Sequence[int]) -> dict[str, Any]:
        return {"inner": self.inner.left(heads)}

    def key_values(self, inputs: jax.Array, positions: jax.Array | None) -> KeyValues:
        counted = positions_or_count(positions, inputs.shape[1])
        latent = into_heads(inputs, self.latent)  # [batch, key, rank]
        return {"latent": latent, "position": jnp.broadcast_to(counted, latent.shape[:2]).astype(jnp.int32)}

    def attend(self, inputs: jax.Array, key_values: KeyValues, call: AttentionOptions) -> Attended:
        inner, latent = self.inner, key_values["latent"]
        rebuilt = inner.key_values(latent, key_values["position"])
        # With dropout the weights no longer sum to one, and the value bias is not simply added to the context.
        averages = inputs.shape[1] == 1 and isinstance(inner, GroupedAttention)
        if not averages or call.dropout.active:
            return inner.attend(inputs, rebuilt, call)
        read = inner.attend(inputs, rebuilt | {"value": latent[:, :, None]}, call)
        groups = jnp.asarray(self.groups)
        context = jnp.einsum("bqhr,rhv->bqhv", read.context, inner.value[:, groups])
        if inner.value_bias is not None:
            context = context + inner.value_bias[None, None, groups]
        return read._replace(context=context)
