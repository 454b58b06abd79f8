"""Attention over a short latent of the attended sequence, which is all that a cache holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from headjax.core.errors import require
from headjax.core.fields import Count, Listed, Positive, Size
from headjax.core.kind import Kind
from headjax.core.tensors import bias_weight, redeclared, weight
from headjax.nn.attend import AttentionOptions
from headjax.nn.module import AttentionModule, Ids, formulation
from headjax.nn.multi_head import GroupedAttention
from headjax.nn.norms import Norm, small_norm
from headjax.nn.operands import Attended, KeyValues
from headjax.nn.projections import HeadOutput, into_heads
from headjax.nn.rotary import Rotary, logit_scale, positions_or_count


@formulation("latent")
class LatentAttention(AttentionModule):
    """Multi-head latent attention (DeepSeek-V2 2024, section 2.1).

        c = norm(y W_C) [rank],   k_h = c W_UK^h,   v_h = c W_UV^h + b_V^h
        z = norm(x W_Z) [query_rank], or x itself,   (q_h, r_h) = z W_Q^h + b_Q^h
        head_h = softmax((q_h k_h^T + turn(r_h) turn(y W_R)^T) * scale) v_h

    The second term exists with rotary_dim > 0: rotated keys cannot be computed from c alone, so their rotary part
    y W_R [rotary_dim] is kept apart, one for all heads. A decoding cache holds c and the rotated y W_R.
    There is no key bias: it would add the same to every logit of a row.

    Because q_h k_h^T = (q_h W_UK^hT) c^T, heads can also attend to c itself (multi-query attention with one KV head of
    size rank) and be mapped by W_UV^h afterwards. A single query, as in decoding, does so; both are
    equal up to rounding.

        >>> layer = headjax.LatentAttention(16, num_heads=4, rank=8, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((1, 3, 16))).shape
        (1, 3, 16)

    Args:
        rank: size of the latent c.
        head_dim: size of each query and key, the rotary part not counted.
        value_dim: size of each value; None is head_dim.
        query_rank: size of the queries' own latent; None computes them from x directly.
        rotary_dim: size of the rotary part of queries and keys; 0 without.
        rotary: rotation of the rotary part; given exactly when rotary_dim > 0.
        scale: multiplies the logits; None is 1 / sqrt(head_dim + rotary_dim). A conversion keeps the original's.
        latent_norm, query_norm: normalise c and z, or None.
        projection_bias: whether queries and values have biases.
        output_bias: whether the output has one.
        num_heads, head_ids, setting: see `AttentionModule`.
    """

    def __init__(
        self,
        width: int,
        memory_width: int | None = None,
        *,
        num_heads: Listed,
        head_ids: Ids = None,
        rank: Size,
        head_dim: Size,
        value_dim: Size | None = None,
        query_rank: Size | None = None,
        rotary_dim: Count = 0,
        rotary: Rotary | None = None,
        scale: Positive | None = None,
        latent_norm: Norm | None = None,
        query_norm: Norm | None = None,
        projection_bias: bool = False,
        output_bias: bool = False,
        **setting: Any,
    ) -> None:
        super().__init__(width, memory_width, **setting)
        heads, source, size, values = num_heads, self.memory_width, head_dim + rotary_dim, self.values
        self.scale, self.rotary = self.logit_scale, rotary
        self.latent = weight((source, rank), ("embed", "latent"))
        self.latent_norm = small_norm(latent_norm, rank)
        self.query_latent = None if query_rank is None else weight((width, query_rank), ("embed", "latent"))
        self.query_norm = None if query_rank is None else small_norm(query_norm, query_rank)
        read, read_axis = (width, "embed") if query_rank is None else (query_rank, "latent")
        self.query = weight((read, heads, size), (read_axis, "heads", "head_dim"))
        self.query_bias = bias_weight(projection_bias, (heads, size), ("heads", "head_dim"))
        self.rotary_key = weight((source, rotary_dim), ("embed", None)) if rotary_dim else None
        self.key = weight((rank, heads, head_dim), ("latent", "heads", "head_dim"))
        self.value = weight((rank, heads, values), ("latent", "heads", "head_dim"))
        self.value_bias = bias_weight(projection_bias, (heads, values), ("heads", "head_dim"))
        self.output = HeadOutput(heads, values, width, bias=output_bias)

    @classmethod
    def check_options(cls, kind: Kind) -> None:
        super().check_options(kind)
        rotary, size = kind.rotary, kind.rotary_dim
        state = "given" if rotary is not None else "None"
        matched = (rotary is not None) == (size > 0)
        require(matched, "rotary_dim", f"is {size}, but rotary is {state}; both or neither")
        if rotary is not None:
            rotary.check("rotary_dim", size)
        lonely = kind.query_norm is not None and kind.query_rank is None
        require(not lonely, "query_norm", "normalises the latent of query_rank, which is None")

    @property
    def logit_scale(self) -> float:
        return self.kind.scale or logit_scale(self.kind.head_dim + self.kind.rotary_dim, self.kind.rotary)

    def key_values(self, inputs: jax.Array, positions: jax.Array | None) -> KeyValues:
        latent = into_heads(inputs, self.latent)  # [batch, key, rank]
        if self.latent_norm is not None:
            latent = self.latent_norm(latent)
        if self.rotary is None or self.rotary_key is None:
            return {"latent": latent}
        turning = into_heads(inputs, self.rotary_key)  # [batch, key, rotary_dim]
        rotated = self.rotary(turning[:, :, None], positions_or_count(positions, inputs.shape[1]))
        return {"latent": latent, "rotary_key": rotated[:, :, 0]}

    def attend(self, inputs: jax.Array, key_values: KeyValues, call: AttentionOptions) -> Attended:
        query, rotated = self._queries(inputs, call)
        # With dropout the weights no longer sum to one, and the value bias is not simply added to the context.
        absorbs = self.absorbs(inputs.shape[1]) and not call.dropout.active
        if absorbs:
            query = jnp.einsum("bqhd,rhd->bqhr", query, self.key[...])
            key = value = key_values["latent"][:, :, None]  # [batch, key, 1, rank]
        else:
            key = into_heads(key_values["latent"], self.key)  # [batch, key, heads, head_dim]
            value = into_heads(key_values["latent"], self.value, self.value_bias)
        if rotated is not None:
            shared = key_values["rotary_key"][:, :, None]
            shared = jnp.broadcast_to(shared, (*key.shape[:3], shared.shape[3]))
            query, key = jnp.concatenate([query, rotated], axis=-1), jnp.concatenate([key, shared], axis=-1)
        attended = call(query, key, value, scale=self.scale)
        if not absorbs:
            return attended
        context = jnp.einsum("bqhr,rhv->bqhv", attended.context, self.value[...])
        return attended._replace(context=context if self.value_bias is None else context + self.value_bias[None, None])

    def absorbs(self, query_length: int) -> bool:
        return query_length <= 1

    def _queries(self, inputs: jax.Array, call: AttentionOptions) -> tuple[jax.Array, jax.Array | None]:
        """Return q_h `[batch, query, heads, head_dim]` and the rotated r_h `[batch, query, heads, rotary_dim]`."""
        if self.query_latent is not None:
            inputs = into_heads(inputs, self.query_latent)  # [batch, query, query_rank]
        if self.query_norm is not None:
            inputs = self.query_norm(inputs)
        query = into_heads(inputs, self.query, self.query_bias)
        if self.rotary is None:
            return query, None
        query, turning = jnp.split(query, [self.key.shape[-1]], axis=-1)
        return query, self.rotary(turning, positions_or_count(call.positions, query.shape[1], call.mask))


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
                setattr(self.inner, name, redeclared(read, read.shape, ("latent", *read.out_sharding[1:])))

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

    def options_after_pruning(self, heads: Sequence[int]) -> dict[str, Any]:
        return {"inner": self.inner.config_after_pruning(heads)}

    def key_values(self, inputs: jax.Array, positions: jax.Array | None) -> KeyValues:
        positions = positions_or_count(positions, inputs.shape[1])
        latent = into_heads(inputs, self.latent)  # [batch, key, rank]
        return {"latent": latent, "position": jnp.broadcast_to(positions, latent.shape[:2]).astype(jnp.int32)}

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
