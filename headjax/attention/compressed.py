"""Any formulation over a short latent of the attended sequence, from which its keys and values are rebuilt."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from headjax.attention.attend import Call
from headjax.attention.formulation import KeyValues, Wrapping
from headjax.attention.module import Rngs, WrappingAttention
from headjax.attention.multi_head import Grouped, MultiHead
from headjax.attention.operands import Attended
from headjax.attention.projections import into_heads
from headjax.attention.rotary import positions_or_count
from headjax.core.errors import require
from headjax.core.fields import Size
from headjax.core.serialize import kind
from headjax.core.tensors import Params, weight, with_axes


@kind("compressed")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Compressed(Wrapping):
    """Any formulation whose keys and values are computed from a latent of the attended sequence.

        c = y W_C [rank],   output = inner(x, c)

    The formulation inside reads c in place of y: its key and value weights map from `rank`. With grouped attention
    inside,

        k_g = turn(norm(c W_K^g + b_K^g)),   v_g = c W_V^g + b_V^g

    so keys are rebuilt first, then normalised, then turned. With rank = kv_heads * (head_dim + value_dim) any grouped
    layer can be written so exactly, rotary embeddings and normalised keys included.

    A decoding cache holds c and the positions. The price is that each step rebuilds the keys of all tokens; `Latent`
    attends to c itself where keys do not turn. Values need no rebuilding for a single query, as in decoding, since
    sum_j p_j v_j = (sum_j p_j c_j) W_V + b_V: heads of multi-head and grouped attention then take the mean of c,
    and map it by W_V^g.

    Attributes:
        inner: the formulation; num_heads and head_ids are its own.
        rank: size of the latent c.
    """

    rank: Size

    def validate(self) -> None:
        require(not isinstance(self.inner, Compressed), "inner", "is compressed already")

    def module(self, width: int, memory_width: int) -> CompressedAttention:
        return CompressedAttention(width, memory_width=memory_width, config=self)

    def flops(self, width: int, memory_width: int, query_length: int, key_length: int) -> int:
        compressed = 2 * key_length * memory_width * self.rank
        inner = self.inner.flops(width, self.rank, query_length, key_length)
        if not self.averages(query_length):
            return compressed + inner
        heads, size = self.num_heads, self.inner.values  # type: ignore[attr-defined]
        rebuilding = key_length * (self.rank * len(set(self.groups)) + heads) * size
        return compressed + inner - 2 * (rebuilding - heads * self.rank * (size + key_length))

    def step_flops(self, width: int, memory_width: int, length: int) -> int:
        return self.flops(width, memory_width, 1, length) - 2 * (length - 1) * memory_width * self.rank

    def averages(self, query_length: int) -> bool:
        """Return whether heads take the mean of c, and not that of values rebuilt from it."""
        return query_length == 1 and isinstance(self.inner, MultiHead | Grouped)


READING = ("key", "value", "content_bias", "latent", "rotary_key")
"""Weights of the formulations that read the attended sequence."""


class CompressedAttention(WrappingAttention):
    """Attention over a latent of the attended sequence: the module of `Compressed`.

    >>> inner = headjax.attention.MultiHead(num_heads=4, head_dim=4)
    >>> layer = headjax.CompressedAttention(16, inner=inner, rank=8, rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((1, 3, 16))).shape
    (1, 3, 16)
    """

    formulation = Compressed
    config: Compressed

    def __init__(self, width: int, *, rngs: Rngs = None, params: Params | None = None, **options: Any) -> None:
        super().__init__(width, rngs=rngs, params=params, **options)
        config = self.config
        self.latent = weight((self.memory_width, config.rank), ("embed", "latent"))
        self.inner = config.inner.module(width, config.rank)
        for name in READING:
            read = getattr(self.inner, name, None)
            if read is not None:
                setattr(self.inner, name, with_axes(read, ("latent", *read.out_sharding[1:])))
        self.fill(rngs, params)

    def key_values(self, inputs: jax.Array, positions: jax.Array | None) -> KeyValues:
        counted = positions_or_count(positions, inputs.shape[1])
        latent = into_heads(inputs, self.latent)  # [batch, key, rank]
        return {"latent": latent, "position": jnp.broadcast_to(counted, latent.shape[:2]).astype(jnp.int32)}

    def attend(self, inputs: jax.Array, key_values: KeyValues, call: Call) -> Attended:
        inner = self.inner
        latent, rebuilt = key_values["latent"], self.rebuilt(key_values)
        # With dropout the weights no longer sum to one, and the value bias is not simply added to the context.
        if not self.config.averages(inputs.shape[1]) or call.dropout.active:
            return inner.attend(inputs, rebuilt, call)
        read = inner.attend(inputs, rebuilt | {"value": latent[:, :, None]}, call)
        groups = jnp.asarray(self.config.groups)
        context = jnp.einsum("bqhr,rhv->bqhv", read.context, inner.value[:, groups])
        if inner.value_bias is not None:
            context = context + inner.value_bias[None, None, groups]
        return read._replace(context=context)

    def rebuilt(self, key_values: KeyValues) -> KeyValues:
        """Return the keys and values of the formulation inside, computed from the latents."""
        return self.inner.key_values(key_values["latent"], key_values["position"])
