"""Multi-head attention with a free head size, and grouped-query attention, in which several queries read one key."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from headjax.attention.attend import Call
from headjax.attention.formulation import Attention, KeyValues
from headjax.attention.module import AttentionModule, Rngs
from headjax.attention.operands import Attended
from headjax.attention.projections import HeadOutput, HeadSizes, bias_weight, into_heads
from headjax.attention.rotary import Rotary, positions_or_count
from headjax.core.errors import require
from headjax.core.fields import Positive, Size
from headjax.core.norms import Norm, small_norm
from headjax.core.serialize import kind
from headjax.core.tensors import Params, weight


@kind("multi_head")
@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiHead(HeadSizes, Attention):
    """Multi-head attention.

        head_h = softmax((x W_Q^h + b_Q^h)(y W_K^h + b_K^h)^T * scale)(y W_V^h + b_V^h)
        output = sum_h head_h W_O^h + b_O

    The standard layer (Vaswani et al. 2017) has head_dim = width / num_heads. Any other head_dim is the fixed head size
    of Bhojanapalli et al. (2020), equation 3, whose heads do not shrink as their number grows. Single-head attention
    (Liu et al. 2021) is num_heads = 1.

    Attributes:
        head_dim: size of each query and key.
        value_dim: size of each value; None is head_dim.
        scale: multiplies the logits; None is 1 / sqrt(head_dim).
        projection_bias: whether queries, keys and values have biases.
        output_bias: whether the output has one.
        rotary: turns queries and keys by their positions, or None. A decoding cache holds turned keys.
        frequencies: pairs of dimensions that each head keeps of heads of size rotary.dim, head_dim / 2 numbers a head,
            so that heads turn at frequencies of their own; None is all pairs.
    """

    head_dim: Size
    value_dim: Size | None = None
    scale: Positive | None = None
    projection_bias: bool = True
    output_bias: bool = True
    rotary: Rotary | None = None
    frequencies: tuple[tuple[int, ...], ...] | None = None

    # Grouped attention with a KV head of its own for each query head.
    key_heads_axis: ClassVar[str] = "heads"
    kv_index: ClassVar[None] = None
    query_norm: ClassVar[None] = None
    key_norm: ClassVar[None] = None

    @property
    def kv_heads(self) -> int:
        """Number of KV heads."""
        return self.num_heads

    def validate(self) -> None:
        if self.frequencies is not None:
            self._check_frequencies(self.frequencies)
        elif self.rotary is not None:
            self.rotary.check("head_dim", self.head_dim)

    def _check_frequencies(self, frequencies: tuple[tuple[int, ...], ...]) -> None:
        pairs = 0 if self.rotary is None or self.rotary.dim is None else self.rotary.dim // 2
        require(pairs > 0, "frequencies", "are numbered within heads of size rotary.dim, which is not given")
        fits = len(frequencies) == self.num_heads and {len(kept) for kept in frequencies} == {self.head_dim / 2}
        message = f"must be {self.head_dim / 2:g} numbers for each of the {self.num_heads} heads, got {frequencies}"
        require(fits, "frequencies", message)
        known = all(0 <= number < pairs for kept in frequencies for number in kept)
        require(known, "frequencies", f"must be from 0 to {pairs - 1}, got {frequencies}")

    def module(self, width: int, memory_width: int) -> MultiHeadAttention:
        return MultiHeadAttention(width, memory_width=memory_width, config=self)

    def with_heads(self, heads: Sequence[int]) -> Attention:
        kept = None if self.frequencies is None else tuple(self.frequencies[head] for head in heads)
        ids = tuple(self.ids[head] for head in heads)
        return dataclasses.replace(self, num_heads=len(heads), head_ids=ids, frequencies=kept)

    def flops(self, width: int, memory_width: int, query_length: int, key_length: int) -> int:
        return _flops(self, width, memory_width, query_length, key_length)


@kind("grouped")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Grouped(HeadSizes, Attention):
    """Grouped-query attention (Ainslie et al. 2023); kv_heads = 1 is multi-query attention (Shazeer 2019).

        head_h = softmax((x W_Q^h + b_Q^h)(y W_K^g + b_K^g)^T * scale)(y W_V^g + b_V^g),   g = g(h)

    A fresh layer reads g(h) = h * kv_heads // num_heads. Removing heads may leave groups of unequal size, so the map is
    then written out; a KV head that no query head reads any more is removed with the last of them.

    Attributes:
        kv_heads: number of KV heads; divides num_heads unless kv_index is given.
        head_dim: size of each query and key.
        value_dim: size of each value; None is head_dim.
        scale: multiplies the logits; None is 1 / sqrt(head_dim).
        kv_index: the KV head that each query head reads; None is equal consecutive groups.
        projection_bias: whether queries, keys and values have biases.
        output_bias: whether the output has one.
        rotary: turns queries and keys by their positions, or None. A decoding cache holds turned keys.
        query_norm, key_norm: normalise each head's query and key before they turn (Qwen3), one weight for all heads.
    """

    kv_heads: Size
    head_dim: Size
    value_dim: Size | None = None
    scale: Positive | None = None
    kv_index: tuple[int, ...] | None = None
    projection_bias: bool = False
    output_bias: bool = False
    rotary: Rotary | None = None
    query_norm: Norm | None = None
    key_norm: Norm | None = None

    key_heads_axis: ClassVar[str] = "kv_heads"

    def validate(self) -> None:
        if self.rotary is not None:
            self.rotary.check("head_dim", self.head_dim)
        heads, groups, index = self.num_heads, self.kv_heads, self.kv_index
        if index is None:
            require(heads % groups == 0, "kv_heads", f"{groups} does not divide the num_heads of {heads}")
            return
        require(len(index) == heads, "kv_index", f"maps {len(index)} heads, but num_heads is {heads}")
        require(
            set(index) == set(range(groups)),
            "kv_index",
            f"must name each of the {groups} kv_heads from 0, got {sorted(set(index))}",
        )

    @property
    def groups(self) -> tuple[int, ...]:
        return equal_groups(self.num_heads, self.kv_heads) if self.kv_index is None else self.kv_index

    def module(self, width: int, memory_width: int) -> GroupedAttention:
        return GroupedAttention(width, memory_width=memory_width, config=self)

    def flops(self, width: int, memory_width: int, query_length: int, key_length: int) -> int:
        return _flops(self, width, memory_width, query_length, key_length)

    def with_heads(self, heads: Sequence[int]) -> Attention:
        read = self.read_by(heads)
        index: tuple[int, ...] | None = tuple(read.index(self.groups[head]) for head in heads)
        if len(heads) % len(read) == 0 and index == equal_groups(len(heads), len(read)):
            index = None
        ids = tuple(self.ids[head] for head in heads)
        return dataclasses.replace(self, num_heads=len(heads), head_ids=ids, kv_heads=len(read), kv_index=index)

    def kept(self, heads: Sequence[int]) -> Mapping[str, Sequence[int]]:
        return {"heads": heads, "kv_heads": self.read_by(heads)}

    def read_by(self, heads: Sequence[int]) -> list[int]:
        """Return the KV heads that these query heads read."""
        return sorted({self.groups[head] for head in heads})


def equal_groups(num_heads: int, kv_heads: int) -> tuple[int, ...]:
    """H * kv_heads // num_heads for every head h."""
    return tuple(head * kv_heads // num_heads for head in range(num_heads))


def _flops(config: MultiHead | Grouped, width: int, memory_width: int, query_length: int, key_length: int) -> int:
    """Count the FLOPs of `Attention.flops` where each query reads the keys of one head."""
    queries = query_length * width * config.num_heads * config.head_dim
    stored = key_length * memory_width * config.kv_heads * (config.head_dim + config.values)
    pairs = query_length * key_length * config.num_heads * (config.head_dim + config.values)
    outputs = query_length * config.num_heads * config.values * width
    return 2 * (queries + stored + pairs + outputs)


class GroupedAttention(AttentionModule):
    """Grouped-query attention: the module of `Grouped`.

    >>> layer = headjax.GroupedAttention(16, num_heads=4, kv_heads=2, rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((1, 3, 16))).shape
    (1, 3, 16)
    >>> layer.query.shape, layer.key.shape
    ((16, 4, 4), (16, 2, 4))
    """

    formulation: ClassVar[type[Attention]] = Grouped
    config: Grouped | MultiHead

    def __init__(self, width: int, *, rngs: Rngs = None, params: Params | None = None, **options: Any) -> None:
        super().__init__(width, rngs=rngs, params=params, **options)
        config, memory_width = self.config, self.memory_width
        heads, kv_heads, kv_axis = config.num_heads, config.kv_heads, config.key_heads_axis
        size, value_size, bias = config.head_dim, config.values, config.projection_bias
        self.query = weight((width, heads, size), ("embed", "heads", "head_dim"))
        self.query_bias = bias_weight(bias, (heads, size), ("heads", "head_dim"))
        self.key = weight((memory_width, kv_heads, size), ("embed", kv_axis, "head_dim"))
        self.key_bias = bias_weight(bias, (kv_heads, size), (kv_axis, "head_dim"))
        self.value = weight((memory_width, kv_heads, value_size), ("embed", kv_axis, "head_dim"))
        self.value_bias = bias_weight(bias, (kv_heads, value_size), (kv_axis, "head_dim"))
        self.output = HeadOutput(heads, value_size, width, bias=config.output_bias)
        self.query_norm = small_norm(config.query_norm, size)
        self.key_norm = small_norm(config.key_norm, size)
        self.fill(rngs, params)

    def key_values(self, inputs: jax.Array, positions: jax.Array | None) -> KeyValues:
        key = into_heads(inputs, self.key, self.key_bias)  # [batch, key, kv_heads, head_dim]
        if self.key_norm is not None:
            key = self.key_norm(key)
        if self.config.rotary is not None:
            key = self.turned(key, positions_or_count(positions, key.shape[1]))
        return {"key": key, "value": into_heads(inputs, self.value, self.value_bias)}

    def attend(self, inputs: jax.Array, key_values: KeyValues, call: Call) -> Attended:
        query = self.queries(inputs, call)
        key, value = self.read(key_values["key"]), self.read(key_values["value"])
        return call(query, key, value, scale=self.config.logit_scale)

    def queries(self, inputs: jax.Array, call: Call) -> jax.Array:
        """Return the queries `[batch, query, heads, head_dim]`, normalised and turned."""
        query = into_heads(inputs, self.query, self.query_bias)
        if self.query_norm is not None:
            query = self.query_norm(query)
        if self.config.rotary is not None:
            query = self.turned(query, positions_or_count(call.positions, query.shape[1], call.mask))
        return query

    def turned(self, vectors: jax.Array, positions: jax.Array) -> jax.Array:
        """Return queries or keys `[batch, length, heads, head_dim]`, turned at `[batch or 1, length]` positions."""
        return vectors if self.config.rotary is None else self.config.rotary(vectors, positions)

    def read(self, stored: jax.Array) -> jax.Array:
        """Return keys or values `[batch, key, kv_heads or 1, dim]` in the form that kernels take.

        Kernels know only equal groups, so unequal ones are read out: one KV head per query head. A single
        head is read by all of them.
        """
        if self.config.kv_index is None or stored.shape[2] == 1:
            return stored
        return jnp.take(stored, jnp.asarray(self.config.kv_index), axis=2)


class MultiHeadAttention(GroupedAttention):
    """Multi-head attention, with a KV head for each query head: the module of `MultiHead`.

    >>> layer = headjax.MultiHeadAttention(16, num_heads=4, rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((1, 3, 16))).shape
    (1, 3, 16)
    >>> layer.keep_heads([0, 2]).config.num_heads
    2
    """

    formulation = MultiHead
    config: MultiHead

    def turned(self, vectors: jax.Array, positions: jax.Array) -> jax.Array:
        rotary, frequencies = self.config.rotary, self.config.frequencies
        if rotary is None or rotary.dim is None or frequencies is None:
            return super().turned(vectors, positions)
        angles = rotary.angles(positions, rotary.dim)[..., np.asarray(frequencies)]  # [.., length, heads, head_dim / 2]
        first, second = rotary.split(vectors.astype(jnp.float32))
        return rotary.join(*rotary.turn(first, second, angles)).astype(vectors.dtype)
