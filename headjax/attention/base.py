"""What every attention formulation is: a frozen config that declares its tensors and computes its forward."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from headjax.attention.attend import AcrossHeads, Attended, Dropout, attend
from headjax.attention.mask import Mask
from headjax.core.errors import require
from headjax.core.fields import Checked, Size
from headjax.core.tensors import Params, Tensors, take_heads

Memory = dict[str, jax.Array]
"""What a formulation keeps of the attended sequence, `[batch, key, ...]` each: exactly what a decoding cache holds."""


class Call(NamedTuple):
    """Everything about one attention call that is neither parameter nor input.

    Attributes:
        mask: which keys a query may see.
        bias: added to the scaled logits, broadcastable to `[batch, heads, query, key]` (relative positions).
        gates: head gates, see `attend`.
        dropout: dropout of the probabilities.
        positions: `[batch or 1, query]` positions of the queries, for rotary embeddings.
        probabilities: whether somebody may look at the probabilities, see `attend`.
        implementation: name of the attention kernel.
    """

    mask: Mask | None = None
    bias: jax.Array | None = None
    gates: jax.Array | None = None
    dropout: Dropout | None = None
    positions: jax.Array | None = None
    probabilities: bool = False
    implementation: str = "auto"

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        *,
        scale: float,
        mixing: jax.Array | None = None,
        across_heads: AcrossHeads | None = None,
    ) -> Attended:
        """`headjax.attention.attend` with everything that this call says."""
        return attend(
            query,
            key,
            value,
            scale=scale,
            mask=self.mask,
            bias=self.bias,
            gates=self.gates,
            dropout=self.dropout,
            mixing=mixing,
            across_heads=across_heads,
            probabilities=self.probabilities,
            implementation=self.implementation,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attention(Checked, abc.ABC):
    """Base of the formulations; `width` is that of the residual stream, `memory_width` that of what is attended to.

    Attributes:
        num_heads: number of heads.
        head_ids: the heads' original numbers, kept when heads are removed; None counts from 0.
    """

    num_heads: Size
    head_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_ids is not None:
            require(
                len(self.head_ids) == self.num_heads,
                "head_ids",
                f"names {len(self.head_ids)} heads, but num_heads is {self.num_heads}",
            )
            distinct = len(set(self.head_ids)) == len(self.head_ids) and min(self.head_ids) >= 0
            require(distinct, "head_ids", f"must be distinct and not negative, got {self.head_ids}")
        self.validate()

    def validate(self) -> None:
        """Raises `ConfigError` naming the field that cannot be used."""

    @property
    def ids(self) -> tuple[int, ...]:
        """Original number of each head."""
        return tuple(range(self.num_heads)) if self.head_ids is None else self.head_ids

    @abc.abstractmethod
    def tensors(self, width: int, memory_width: int) -> Tensors:
        """The declared parameters."""

    @abc.abstractmethod
    def memory(self, params: Params, inputs: jax.Array, positions: jax.Array | None) -> Memory:
        """Keys and values (or what they are computed from) of the attended sequence.

        Args:
            params: this formulation's parameters.
            inputs: `[batch, key, memory_width]`.
            positions: `[batch or 1, key]`, for rotary embeddings.
        """

    @abc.abstractmethod
    def attend(self, params: Params, inputs: jax.Array, memory: Memory, call: Call) -> Attended:
        """Gated contexts `[batch, query, heads, value_dim]` of queries `inputs [batch, query, width]`."""

    @abc.abstractmethod
    def combine(self, params: Params, context: jax.Array) -> jax.Array:
        """sum_h context_h W_O^h + b_O: `[batch, query, heads, value_dim]` to `[batch, query, width]`."""

    def output_matrices(self, params: Params) -> jax.Array:
        """W_O^h of every head, `[heads, value_dim, width]`, where `combine` is linear in the contexts but for b_O.

        It is the tensor that `declare_output` declares; formulations that have none say where theirs is.
        """
        return params["output"]

    @abc.abstractmethod
    def flops(self, width: int, memory_width: int, query_length: int, key_length: int) -> int:
        """Floating-point operations of one forward of one sequence: two a multiply-add, none for softmax and biases."""

    def cache_size(self, width: int, memory_width: int) -> int:
        """Scalars a decoding cache holds per token: the size of `memory`."""
        params = jax.eval_shape(lambda: _zeros(self.tensors(width, memory_width)))
        inputs = jax.ShapeDtypeStruct((1, 1, memory_width), "float32")
        positions = jax.ShapeDtypeStruct((1, 1), "int32")
        kept = jax.eval_shape(self.memory, params, inputs, positions)
        return sum(array.size for array in jax.tree.leaves(kept))

    def keep_heads(
        self, params: Params, heads: Sequence[int], width: int, memory_width: int
    ) -> tuple[Attention, Params]:
        """The layer with only the heads at these positions, for real: a smaller config and smaller arrays.

        Args:
            params: this formulation's parameters.
            heads: positions (not original numbers) of the heads to keep; none gives a `NoHeads` layer.
            width, memory_width: as for `tensors`.
        """
        from headjax.attention.no_heads import NoHeads

        if not heads:
            return NoHeads.from_params(params)
        config = self.with_heads(heads)
        return config, take_heads(self.tensors(width, memory_width), params, heads)

    def with_heads(self, heads: Sequence[int]) -> Attention:
        """The config of the layer with only the heads at these positions."""
        return dataclasses.replace(self, num_heads=len(heads), head_ids=tuple(self.ids[h] for h in heads))

    def structure(self) -> Attention:
        """The config without the heads' original numbers: layers equal in this compute alike and scan together."""
        return dataclasses.replace(self, head_ids=None)


def structure(attention: Any) -> Any:
    """`attention.structure()`, or None of None."""
    return attention.structure() if isinstance(attention, Attention) else attention


def _zeros(tensors: Tensors) -> Params:
    from headjax.core.tensors import Zeros, initialize

    return initialize(tensors, jax.random.key(0), Zeros())
