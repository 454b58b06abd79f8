"""The base of the attention formulations: a frozen config that declares its tensors and computes its forward."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from headjax.attention.attend import Call
from headjax.attention.operands import Attended
from headjax.core.errors import require
from headjax.core.fields import Listed, check_fields
from headjax.core.modules import Spec
from headjax.core.serialize import kind
from headjax.core.tensors import Params, Tensors, Zeros, abstract, count, take_heads, weight

KeyValues = dict[str, jax.Array]
"""Arrays `[batch, key, ...]` that a formulation computes from the attended sequence; a decoding cache holds them."""

FLOPS_A_NUMBER = 16
"""Floating-point operations that a processor does at least in the time in which it reads a number from memory."""

ROOM = 4
"""Times that rebuilt keys and values may be as large as the weights of their attention: about a whole layer's."""


class Step(NamedTuple):
    """Cost of one query that meets the tokens in a cache.

    Attributes:
        flops: floating-point operations, two a multiply-add.
        numbers: scalars that are read or written for the tokens in the cache; weights are not counted.
    """

    flops: int
    numbers: int

    @property
    def time(self) -> float:
        """The longer of both, in the time of one number."""
        return max(self.numbers, self.flops / FLOPS_A_NUMBER)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attention(Spec, abc.ABC):
    """Base of the formulations.

    In its methods, `width` is the width of the residual stream and `memory_width` that of the sequence attended to: the
    stream itself, or an encoder's output.

    Attributes:
        num_heads: number of heads.
        head_ids: the heads' original numbers, kept when heads are removed; None counts from 0.
    """

    num_heads: Listed
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
        """Raise `ConfigError` naming the first field with a value that cannot be used."""

    @property
    def ids(self) -> tuple[int, ...]:
        """Original number of each head."""
        return tuple(range(self.num_heads)) if self.head_ids is None else self.head_ids

    @property
    def groups(self) -> tuple[int, ...]:
        """The key and value head that each query head reads; by default each has its own."""
        return tuple(range(self.num_heads))

    @property
    def bias_ids(self) -> tuple[int, ...]:
        """Original numbers of the heads to which a bias of the logits has an entry each; by default those of all."""
        return self.ids

    @abc.abstractmethod
    def tensors(self, width: int, memory_width: int) -> Tensors:
        """The declared parameters."""

    @abc.abstractmethod
    def key_values(self, params: Params, inputs: jax.Array, positions: jax.Array | None) -> KeyValues:
        """Return the keys and values of the attended sequence, or the arrays they are computed from.

        Args:
            params: this formulation's parameters.
            inputs: `[batch, key, memory_width]`.
            positions: `[batch or 1, key]`, for rotary embeddings.
        """

    @abc.abstractmethod
    def attend(self, params: Params, inputs: jax.Array, key_values: KeyValues, call: Call) -> Attended:
        """Return the gated contexts `[batch, query, heads, value_dim]` of queries `inputs [batch, query, width]`."""

    @abc.abstractmethod
    def combine(self, params: Params, context: jax.Array) -> jax.Array:
        """Return sum_h context_h W_O^h + b_O: `[batch, query, heads, value_dim]` to `[batch, query, width]`."""

    def output_matrices(self, params: Params) -> jax.Array:
        """Return W_O^h of every head, `[heads, value_dim, width]`, of which `combine` is the linear map, b_O aside.

        This is the tensor that `declare_output` declares; formulations without one override the method.
        """
        return params["output"]

    @abc.abstractmethod
    def flops(self, width: int, memory_width: int, query_length: int, key_length: int) -> int:
        """Count the floating-point operations of one forward of one sequence.

        A multiply-add counts as two; softmax and biases count nothing.
        """

    def cache_size(self, width: int, memory_width: int) -> int:
        """Return the number of scalars that a decoding cache holds per token: the size of `key_values`."""
        params = abstract(self.tensors(width, memory_width), jnp.dtype("float32"))
        inputs = jax.ShapeDtypeStruct((1, 1, memory_width), "float32")
        positions = jax.ShapeDtypeStruct((1, 1), "int32")
        kept = jax.eval_shape(self.key_values, params, inputs, positions)
        return sum(array.size for array in jax.tree.leaves(kept))

    def rebuilt(self, params: Params, key_values: KeyValues) -> KeyValues:
        """Return what `attend` computes of `key_values` alone, which it takes in their place; by default nothing."""
        return key_values

    def step(self, width: int, memory_width: int, length: int) -> Step:
        """Return the cost of a query where a cache holds the `key_values` of `length` tokens, the last one new."""
        flops = self.flops(width, memory_width, 1, length) - self.flops(width, memory_width, 0, length - 1)
        return Step(flops, length * self.cache_size(width, memory_width))

    def rebuilt_step(self, width: int, memory_width: int, length: int) -> Step:
        """Return the same where it holds what is `rebuilt` of them."""
        return self.step(width, memory_width, length)

    def keeps_rebuilt(self, width: int, memory_width: int, length: int, batch: int = 1) -> bool:
        """Return whether caches of a batch of this length hold `rebuilt` keys and values.

        They do where a step takes less time so, and the caches are no larger than `ROOM` times this layer's weights.
        """
        kept = self.rebuilt_step(width, memory_width, length)
        weights = count(self.tensors(width, memory_width))
        return batch * kept.numbers <= ROOM * weights and kept.time < self.step(width, memory_width, length).time

    def decoding_step(self, width: int, memory_width: int, length: int, batch: int = 1) -> Step:
        """Return the cost of a query of each example in a batch, by the cheaper of both forms."""
        rebuilt = self.keeps_rebuilt(width, memory_width, length, batch)
        one = (self.rebuilt_step if rebuilt else self.step)(width, memory_width, length)
        return Step(batch * one.flops, batch * one.numbers)

    def keep_heads(
        self, params: Params, heads: Sequence[int], width: int, memory_width: int
    ) -> tuple[Attention, Params]:
        """Return the layer with only the heads at these positions: a smaller config and smaller arrays.

        Args:
            params: this formulation's parameters.
            heads: positions (not original numbers) of the heads to keep; none gives a `NoHeads` layer.
            width, memory_width: as for `tensors`.
        """
        if not heads:
            return NoHeads.from_params(params)
        config = self.with_heads(heads)
        return config, take_heads(self.tensors(width, memory_width), params, heads)

    def with_heads(self, heads: Sequence[int]) -> Attention:
        """Return the config of the layer with only the heads at these positions."""
        return dataclasses.replace(self, num_heads=len(heads), head_ids=tuple(self.ids[h] for h in heads))

    def structure(self) -> Attention:
        """Return the config without the heads' original numbers; layers of equal structure are scanned together."""
        return dataclasses.replace(self, head_ids=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wrapping(Attention):
    """Base of formulations around another one, whose parameters lie under `inner`.

    Attributes:
        inner: the formulation; num_heads and head_ids are its own.
    """

    num_heads: int = dataclasses.field(init=False)
    head_ids: tuple[int, ...] | None = dataclasses.field(init=False)
    inner: Attention

    def __post_init__(self) -> None:
        check_fields(self)
        require(not isinstance(self.inner, NoHeads), "inner", "has no heads, so that there is nothing around them")
        object.__setattr__(self, "num_heads", self.inner.num_heads)
        object.__setattr__(self, "head_ids", self.inner.head_ids)
        super().__post_init__()

    @property
    def groups(self) -> tuple[int, ...]:
        return self.inner.groups

    @property
    def bias_ids(self) -> tuple[int, ...]:
        return self.inner.bias_ids

    def combine(self, params: Params, context: jax.Array) -> jax.Array:
        return self.inner.combine(params["inner"], context)

    def output_matrices(self, params: Params) -> jax.Array:
        return self.inner.output_matrices(params["inner"])

    def with_heads(self, heads: Sequence[int]) -> Attention:
        return dataclasses.replace(self, inner=self.inner.with_heads(heads))

    def structure(self) -> Attention:
        return dataclasses.replace(self, inner=self.inner.structure())


def structure(attention: Any) -> Any:
    """Return `attention.structure()`, or None for None."""
    return attention.structure() if isinstance(attention, Attention) else attention


@kind("no_heads")
@dataclasses.dataclass(frozen=True, kw_only=True)
class NoHeads(Attention):
    """Attention without heads: every output is b_O, or zero without it, since a sum over no heads is zero.

    Attributes:
        output_bias: whether the layer has a b_O.
    """

    num_heads: int = 0
    output_bias: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.num_heads == 0, "num_heads", f"a layer without heads has 0, got {self.num_heads}")

    @classmethod
    def from_params(cls, params: Params) -> tuple[NoHeads, Params]:
        """Return the layer that remains of a formulation without heads, and its parameters: the output bias, if any."""
        kept = {name: array for name, array in params.items() if name == "output_bias"}
        return cls(output_bias=bool(kept)), kept

    def tensors(self, width: int, memory_width: int) -> Tensors:
        return {"output_bias": weight((width,), ("embed",), Zeros(), decay=False)} if self.output_bias else {}

    def key_values(self, params: Params, inputs: jax.Array, positions: jax.Array | None) -> KeyValues:
        return {}

    def attend(self, params: Params, inputs: jax.Array, key_values: KeyValues, call: Call) -> Attended:
        return Attended(jnp.zeros((*inputs.shape[:2], 0, 1), inputs.dtype), None)

    def combine(self, params: Params, context: jax.Array) -> jax.Array:
        if not self.output_bias:
            return jnp.zeros((*context.shape[:2], 1), context.dtype)
        bias = params["output_bias"].reshape(1, 1, -1)
        return jnp.broadcast_to(bias, (*context.shape[:2], bias.shape[-1]))

    def output_matrices(self, params: Params) -> jax.Array:
        return jnp.zeros((0, 1, params["output_bias"].shape[-1] if self.output_bias else 1))

    def flops(self, width: int, memory_width: int, query_length: int, key_length: int) -> int:
        return 0

    def with_heads(self, heads: Sequence[int]) -> Attention:
        return self
