"""Multi-head attention with a free head size, and grouped-query attention, in which several queries read one key."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from headjax.attention.attend import Call
from headjax.attention.formulation import Attention, KeyValues, NoHeads
from headjax.attention.operands import Attended
from headjax.attention.projections import HeadSizes, declare_into_heads, declare_output, into_heads, out_of_heads
from headjax.attention.rotary import Rotary, positions_or_count
from headjax.core.errors import require
from headjax.core.fields import Positive, Size
from headjax.core.norms import Norm, declare_small
from headjax.core.serialize import kind
from headjax.core.tensors import Params, Tensors, take_heads


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

    def tensors(self, width: int, memory_width: int) -> Tensors:
        heads, bias = self.num_heads, self.projection_bias
        return {
            **declare_into_heads("query", width, heads, self.head_dim, bias=bias),
            **declare_into_heads("key", memory_width, heads, self.head_dim, bias=bias),
            **declare_into_heads("value", memory_width, heads, self.values, bias=bias),
            **declare_output(heads, self.values, width, bias=self.output_bias),
        }

    def key_values(self, params: Params, inputs: jax.Array, positions: jax.Array | None) -> KeyValues:
        key = into_heads(inputs, params["key"], params.get("key_bias"))
        if self.rotary is not None:
            key = self._turned(self.rotary, key, positions_or_count(positions, key.shape[1]))
        return {"key": key, "value": into_heads(inputs, params["value"], params.get("value_bias"))}

    def attend(self, params: Params, inputs: jax.Array, key_values: KeyValues, call: Call) -> Attended:
        query = into_heads(inputs, params["query"], params.get("query_bias"))
        if self.rotary is not None:
            positions = positions_or_count(call.positions, query.shape[1], call.mask)
            query = self._turned(self.rotary, query, positions)
        return call(query, key_values["key"], key_values["value"], scale=self.logit_scale)

    def _turned(self, rotary: Rotary, vectors: jax.Array, positions: jax.Array) -> jax.Array:
        """Return queries or keys `[batch, length, heads, head_dim]`, turned at `[batch or 1, length]` positions."""
        if self.frequencies is None or rotary.dim is None:
            return rotary(vectors, positions)
        angles = rotary.angles(positions, rotary.dim)[..., np.asarray(self.frequencies)]
        turned = rotary.join(*rotary.turn(*rotary.split(vectors.astype(jnp.float32)), angles))
        return turned.astype(vectors.dtype)

    def with_heads(self, heads: Sequence[int]) -> Attention:
        kept = None if self.frequencies is None else tuple(self.frequencies[head] for head in heads)
        ids = tuple(self.ids[head] for head in heads)
        return dataclasses.replace(self, num_heads=len(heads), head_ids=ids, frequencies=kept)

    def combine(self, params: Params, context: jax.Array) -> jax.Array:
        return out_of_heads(context, params["output"], params.get("output_bias"))

    def flops(self, width: int, memory_width: int, query_length: int, key_length: int) -> int:
        queries = query_length * width * self.head_dim
        stored = key_length * memory_width * (self.head_dim + self.values)
        pairs = query_length * key_length * (self.head_dim + self.values)
        outputs = query_length * self.values * width
        return 2 * self.num_heads * (queries + stored + pairs + outputs)


_KV_TENSORS = {"key": 1, "value": 1, "key_bias": 0, "value_bias": 0}
"""The tensors that key and value heads own, and the dimension that counts them."""


@kind("grouped")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Grouped(HeadSizes, Attention):
    """Grouped-query attention (Ainslie et al. 2023); kv_heads = 1 is multi-query attention (Shazeer 2019).

        head_h = softmax((x W_Q^h + b_Q^h)(y W_K^g + b_K^g)^T * scale)(y W_V^g + b_V^g),   g = g(h)

    A fresh layer reads g(h) = h * kv_heads // num_heads. Removing heads may leave groups of unequal size, so the map is
    then written out; a key and value head that no query head reads any more is removed with the last of them.

    Attributes:
        kv_heads: number of key and value heads; divides num_heads unless kv_index is given.
        head_dim: size of each query and key.
        value_dim: size of each value; None is head_dim.
        scale: multiplies the logits; None is 1 / sqrt(head_dim).
        kv_index: the key and value head that each query head reads; None is equal consecutive groups.
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

    def tensors(self, width: int, memory_width: int) -> Tensors:
        bias = self.projection_bias
        tensors = {
            **declare_into_heads("query", width, self.num_heads, self.head_dim, bias=bias),
            **declare_into_heads("key", memory_width, self.kv_heads, self.head_dim, bias=bias, axis="kv_heads"),
            **declare_into_heads("value", memory_width, self.kv_heads, self.values, bias=bias, axis="kv_heads"),
            **declare_output(self.num_heads, self.values, width, bias=self.output_bias),
        }
        if self.query_norm is not None:
            tensors["query_norm"] = declare_small(self.query_norm, self.head_dim)
        if self.key_norm is not None:
            tensors["key_norm"] = declare_small(self.key_norm, self.head_dim)
        return tensors

    def key_values(self, params: Params, inputs: jax.Array, positions: jax.Array | None) -> KeyValues:
        key = into_heads(inputs, params["key"], params.get("key_bias"))
        if self.key_norm is not None:
            key = self.key_norm(params["key_norm"], key)
        if self.rotary is not None:
            key = self.rotary(key, positions_or_count(positions, key.shape[1]))
        return {"key": key, "value": into_heads(inputs, params["value"], params.get("value_bias"))}

    def attend(self, params: Params, inputs: jax.Array, key_values: KeyValues, call: Call) -> Attended:
        query = self.queries(params, inputs, call)
        key, value = self.read(key_values["key"]), self.read(key_values["value"])
        return call(query, key, value, scale=self.logit_scale)

    def queries(self, params: Params, inputs: jax.Array, call: Call) -> jax.Array:
        """Return the queries `[batch, query, heads, head_dim]`, normalised and turned."""
        query = into_heads(inputs, params["query"], params.get("query_bias"))
        if self.query_norm is not None:
            query = self.query_norm(params["query_norm"], query)
        if self.rotary is not None:
            query = self.rotary(query, positions_or_count(call.positions, query.shape[1], call.mask))
        return query

    def read(self, stored: jax.Array) -> jax.Array:
        """Return keys or values `[batch, key, kv_heads or 1, dim]` in the form that kernels take.

        Kernels know only equal groups, so unequal ones are read out: one key and value head per query head. A single
        head is read by all of them.
        """
        if self.kv_index is None or stored.shape[2] == 1:
            return stored
        return jnp.take(stored, jnp.asarray(self.kv_index), axis=2)

    def combine(self, params: Params, context: jax.Array) -> jax.Array:
        return out_of_heads(context, params["output"], params.get("output_bias"))

    def flops(self, width: int, memory_width: int, query_length: int, key_length: int) -> int:
        queries = query_length * width * self.num_heads * self.head_dim
        stored = key_length * memory_width * self.kv_heads * (self.head_dim + self.values)
        pairs = query_length * key_length * self.num_heads * (self.head_dim + self.values)
        outputs = query_length * self.num_heads * self.values * width
        return 2 * (queries + stored + pairs + outputs)

    def keep_heads(
        self, params: Params, heads: Sequence[int], width: int, memory_width: int
    ) -> tuple[Attention, Params]:
        if not heads:
            return NoHeads.from_params(params)
        return self.with_heads(heads), self.take(self.tensors(width, memory_width), params, heads)

    def take(self, tensors: Tensors, params: Params, heads: Sequence[int]) -> Params:
        """Return the declared parameters of these query heads, and of the key and value heads that they read."""
        kept, read = take_heads(tensors, params, heads), jnp.asarray(self.read_by(heads))
        return kept | {
            name: jnp.take(kept[name], read, axis=axis) for name, axis in _KV_TENSORS.items() if name in kept
        }

    def with_heads(self, heads: Sequence[int]) -> Attention:
        read = self.read_by(heads)
        index: tuple[int, ...] | None = tuple(read.index(self.groups[head]) for head in heads)
        if len(heads) % len(read) == 0 and index == equal_groups(len(heads), len(read)):
            index = None
        ids = tuple(self.ids[head] for head in heads)
        return dataclasses.replace(self, num_heads=len(heads), head_ids=ids, kv_heads=len(read), kv_index=index)

    def read_by(self, heads: Sequence[int]) -> list[int]:
        """Return the key and value heads that these query heads read."""
        return sorted({self.groups[head] for head in heads})


def equal_groups(num_heads: int, kv_heads: int) -> tuple[int, ...]:
    """H * kv_heads // num_heads for every head h."""
    return tuple(head * kv_heads // num_heads for head in range(num_heads))
