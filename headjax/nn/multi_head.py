"""Multi-head attention with a free head size, and grouped-query attention, in which several queries read one key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import require
from headjax.core.fields import Listed, Positive, Size
from headjax.core.kind import Kind
from headjax.core.tensors import bias_weight, weight
from headjax.nn.attend import AttentionOptions
from headjax.nn.module import AttentionModule, Ids, formulation
from headjax.nn.norms import Norm, small_norm
from headjax.nn.operands import Attended, KeyValues
from headjax.nn.projections import HeadOutput, into_heads
from headjax.nn.rotary import Rotary, logit_scale, positions_or_count


@formulation("grouped")
class GroupedAttention(AttentionModule):
    """Grouped-query attention (Ainslie et al. 2023); kv_heads = 1 is multi-query attention (Shazeer 2019).

        head_h = softmax((x W_Q^h + b_Q^h)(y W_K^g + b_K^g)^T * scale)(y W_V^g + b_V^g),   g = g(h)
        output = sum_h head_h W_O^h + b_O

    A fresh layer reads g(h) = h * kv_heads // num_heads. Removing heads may leave groups of unequal size, so the map is
    then written out; a KV head that no query head reads any more is removed with the last of them.

        >>> layer = headjax.GroupedAttention(16, num_heads=4, kv_heads=2, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((1, 3, 16))).shape
        (1, 3, 16)
        >>> layer.query.shape, layer.key.shape
        ((16, 4, 4), (16, 2, 4))

    Args:
        kv_heads: number of KV heads; divides num_heads unless kv_index is given.
        head_dim: size of each query and key.
        value_dim: size of each value; None is head_dim.
        scale: multiplies the logits; None is 1 / sqrt(head_dim), times the factor that the rotary scaling asks for.
        kv_index: the KV head that each query head reads; None is equal consecutive groups.
        projection_bias: whether queries, keys and values have biases.
        output_bias: whether the output has one.
        rotary: turns queries and keys by their positions, or None. A decoding cache holds rotated keys.
        query_norm, key_norm: normalise each head's query and key before they turn (Qwen3), one weight for all heads.
        num_heads, head_ids, setting: see `AttentionModule`.
    """

    key_heads_axis: ClassVar[str] = "kv_heads"
    rotary: Any

    def __init__(
        self,
        width: int,
        memory_width: int | None = None,
        *,
        num_heads: Listed,
        head_ids: Ids = None,
        kv_heads: Size,
        head_dim: Size,
        value_dim: Size | None = None,
        scale: Positive | None = None,
        kv_index: Ids = None,
        projection_bias: bool = False,
        output_bias: bool = False,
        rotary: Rotary | None = None,
        query_norm: Norm | None = None,
        key_norm: Norm | None = None,
        **setting: Any,
    ) -> None:
        super().__init__(width, memory_width, **setting)
        self.kv_index, self.rotary, self.scale = kv_index, rotary, self.logit_scale
        source, values, keys = self.memory_width, self.values, self.key_heads_axis
        self.query = weight((width, num_heads, head_dim), ("embed", "heads", "head_dim"))
        self.query_bias = bias_weight(projection_bias, (num_heads, head_dim), ("heads", "head_dim"))
        self.key = weight((source, kv_heads, head_dim), ("embed", keys, "head_dim"))
        self.key_bias = bias_weight(projection_bias, (kv_heads, head_dim), (keys, "head_dim"))
        self.value = weight((source, kv_heads, values), ("embed", keys, "head_dim"))
        self.value_bias = bias_weight(projection_bias, (kv_heads, values), (keys, "head_dim"))
        self.output = HeadOutput(num_heads, values, width, bias=output_bias)
        self.query_norm = small_norm(query_norm, head_dim)
        self.key_norm = small_norm(key_norm, head_dim)

    @classmethod
    def check_options(cls, kind: Kind) -> None:
        super().check_options(kind)
        heads, groups, index = kind.num_heads, kind.kv_heads, kind.options.get("kv_index")
        if kind.rotary is not None and kind.options.get("frequencies") is None:
            kind.rotary.check("head_dim", kind.head_dim)
        if index is None:
            require(heads % groups == 0, "kv_heads", f"{groups} does not divide the num_heads of {heads}")
        else:
            require(len(index) == heads, "kv_index", f"maps {len(index)} heads, but num_heads is {heads}")
            named = f"must name each of the {groups} kv_heads from 0, got {sorted(set(index))}"
            require(set(index) == set(range(groups)), "kv_index", named)

    @property
    def logit_scale(self) -> float:
        return self.kind.scale or logit_scale(self.kind.head_dim, self.kind.rotary)

    @property
    def kv_heads(self) -> int:
        return self.kind.options.get("kv_heads", self.kind.num_heads)

    @property
    def groups(self) -> tuple[int, ...]:
        index: Ids = self.kind.options.get("kv_index")
        return equal_groups(self.kind.num_heads, self.kind.kv_heads) if index is None else index

    def key_values(self, inputs: jax.Array, positions: jax.Array | None) -> KeyValues:
        key = into_heads(inputs, self.key, self.key_bias)  # [batch, key, kv_heads, head_dim]
        if self.key_norm is not None:
            key = self.key_norm(key)
        if self.rotary is not None:
            key = self.rotated(key, positions_or_count(positions, key.shape[1]))
        return {"key": key, "value": into_heads(inputs, self.value, self.value_bias)}

    def attend(self, inputs: jax.Array, key_values: KeyValues, call: AttentionOptions) -> Attended:
        query = into_heads(inputs, self.query, self.query_bias)  # [batch, query, heads, head_dim]
        if self.query_norm is not None:
            query = self.query_norm(query)
        if self.rotary is not None:
            query = self.rotated(query, positions_or_count(call.positions, query.shape[1], call.mask))
        key, value = key_values["key"], key_values["value"]
        if self.kv_index is not None:
            # Kernels know only equal groups: of unequal ones each head gets its own copy, unless all read the same.
            index = jnp.asarray(self.kv_index)
            key, value = (array if array.shape[2] == 1 else jnp.take(array, index, axis=2) for array in (key, value))
        return call(query, key, value, scale=self.scale)

    def rotated(self, vectors: jax.Array, positions: jax.Array) -> jax.Array:
        """Return queries or keys `[batch, length, heads, head_dim]`, rotated at `[batch or 1, length]` positions."""
        return self.rotary(vectors, positions)

    def options_after_pruning(self, heads: Sequence[int]) -> dict[str, Any]:
        read = sorted({self.groups[head] for head in heads})
        index: Ids = tuple(read.index(self.groups[head]) for head in heads)
        if len(heads) % len(read) == 0 and index == equal_groups(len(heads), len(read)):
            index = None
        return super().options_after_pruning(heads) | {"kv_heads": len(read), "kv_index": index}


def equal_groups(num_heads: int, kv_heads: int) -> tuple[int, ...]:
    """H * kv_heads // num_heads for every head h."""
    return tuple(head * kv_heads // num_heads for head in range(num_heads))


@formulation("multi_head")
class MultiHeadAttention(GroupedAttention):
    """Multi-head attention.

        head_h = softmax((x W_Q^h + b_Q^h)(y W_K^h + b_K^h)^T * scale)(y W_V^h + b_V^h)
        output = sum_h head_h W_O^h + b_O

    The standard layer (Vaswani et al. 2017) has head_dim = width / num_heads. Any other head_dim is the fixed head size
    of Bhojanapalli et al. (2020), equation 3, whose heads do not shrink as their number grows. Single-head attention
    (Liu et al. 2021) is num_heads = 1.

        >>> layer = headjax.MultiHeadAttention(16, num_heads=4, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((1, 3, 16))).shape
        (1, 3, 16)
        >>> layer.keep_heads([0, 2]).num_heads
        2

    Args:
        frequencies: pairs of dimensions that each head keeps of heads of size rotary.dim, head_dim / 2 numbers a head,
            so that heads turn at frequencies of their own; None is all pairs.
        setting: see `AttentionModule`; the other options are those of `GroupedAttention`.
    """

    key_heads_axis = "heads"

    def __init__(
        self,
        width: int,
        memory_width: int | None = None,
        *,
        num_heads: Listed,
        head_ids: Ids = None,
        head_dim: Size,
        value_dim: Size | None = None,
        scale: Positive | None = None,
        projection_bias: bool = True,
        output_bias: bool = True,
        rotary: Rotary | None = None,
        frequencies: tuple[tuple[int, ...], ...] | None = None,
        **setting: Any,
    ) -> None:
        super().__init__(
            width,
            memory_width,
            num_heads=num_heads,
            kv_heads=num_heads,
            head_dim=head_dim,
            projection_bias=projection_bias,
            output_bias=output_bias,
            rotary=rotary,
            value_dim=value_dim,
            scale=scale,
            **setting,
        )

    @classmethod
    def check_options(cls, kind: Kind) -> None:
        super().check_options(kind)
        heads, size, rotary, frequencies = kind.num_heads, kind.head_dim, kind.rotary, kind.frequencies
        if frequencies is None:
            return
        pairs = 0 if rotary is None or rotary.dim is None else rotary.dim // 2
        require(pairs > 0, "frequencies", "are numbered within heads of size rotary.dim, which is not given")
        fits = len(frequencies) == heads and {len(kept) for kept in frequencies} == {size / 2}
        message = f"must be {size / 2:g} numbers for each of the {heads} heads, got {frequencies}"
        require(fits, "frequencies", message)
        exist = all(0 <= number < pairs for kept in frequencies for number in kept)
        require(exist, "frequencies", f"must be from 0 to {pairs - 1}, got {frequencies}")

    def rotated(self, vectors: jax.Array, positions: jax.Array) -> jax.Array:
        rotary, frequencies = self.rotary, self.kind.frequencies
        if frequencies is None:
            return super().rotated(vectors, positions)
        angles = rotary.angles(positions, rotary.dim)[..., np.asarray(frequencies)]  # [.., length, heads, head_dim / 2]
        first, second = rotary.split(vectors.astype(jnp.float32))
        return rotary.join(*rotary.rotate(first, second, angles)).astype(vectors.dtype)

    def options_after_pruning(self, heads: Sequence[int]) -> dict[str, Any]:
        kept = self.kind.frequencies and tuple(self.kind.frequencies[head] for head in heads)
        return AttentionModule.options_after_pruning(self, heads) | {"frequencies": kept}
