"""The base of the attention formulations: a frozen config that knows its module and the cost of a call."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from headjax.core.errors import require
from headjax.core.fields import Listed, check_fields
from headjax.core.modules import Spec

KeyValues = dict[str, jax.Array]
"""Arrays `[batch, key, ...]` that a formulation computes from the attended sequence; a decoding cache holds them."""


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
        """The KV head that each query head reads; by default each has its own."""
        return tuple(range(self.num_heads))

    @abc.abstractmethod
    def module(self, width: int, memory_width: int) -> Any:
        """Return the `headjax.attention.AttentionModule` of the formulation, its weights declared and not drawn."""

    @abc.abstractmethod
    def flops(self, width: int, memory_width: int, query_length: int, key_length: int) -> int:
        """Count the floating-point operations of one forward of one sequence.

        A multiply-add counts as two; softmax and biases count nothing.
        """

    def cache_size(self, width: int, memory_width: int) -> int:
        """Return the number of scalars that a decoding cache holds per token: the size of the module's `key_values`."""
        return _cache_size(self, width, memory_width)

    def step_flops(self, width: int, memory_width: int, length: int) -> int:
        """Count the FLOPs of one query where a cache holds the `key_values` of `length` tokens, the last one new."""
        return self.flops(width, memory_width, 1, length) - self.flops(width, memory_width, 0, length - 1)

    def with_heads(self, heads: Sequence[int]) -> Attention:
        """Return the config of the layer with only the heads at these positions."""
        return dataclasses.replace(self, num_heads=len(heads), head_ids=tuple(self.ids[h] for h in heads))

    def kept(self, heads: Sequence[int]) -> Mapping[str, Sequence[int]]:
        """Return the positions that stay with these heads, by the logical axis of the weights that counts them."""
        return {"heads": heads}

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
        require(self.inner.num_heads > 0, "inner", "has no heads, so that there is nothing around them")
        object.__setattr__(self, "num_heads", self.inner.num_heads)
        object.__setattr__(self, "head_ids", self.inner.head_ids)
        super().__post_init__()

    @property
    def groups(self) -> tuple[int, ...]:
        return self.inner.groups

    def kept(self, heads: Sequence[int]) -> Mapping[str, Sequence[int]]:
        return self.inner.kept(heads)

    def with_heads(self, heads: Sequence[int]) -> Attention:
        return dataclasses.replace(self, inner=self.inner.with_heads(heads))

    def structure(self) -> Attention:
        return dataclasses.replace(self, inner=self.inner.structure())


def structure(attention: Any) -> Any:
    """Return `attention.structure()`, or None for None."""
    return attention.structure() if isinstance(attention, Attention) else attention


@functools.lru_cache(maxsize=1024)
def _cache_size(attention: Attention, width: int, memory_width: int) -> int:
    kept = key_value_shapes(attention.module(width, memory_width), 1, 1, jnp.float32)
    return sum(array.size for array in jax.tree.leaves(kept))


def key_value_shapes(module: Any, batch: int, length: int, dtype: Any) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of the `key_values` of an attention module that computes in a type."""
    shapes = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, dtype), module)
    inputs = jax.ShapeDtypeStruct((batch, length, module.memory_width), dtype)
    positions = jax.ShapeDtypeStruct((1, length), jnp.int32)
    found: dict[str, jax.ShapeDtypeStruct] = jax.eval_shape(type(module).key_values, shapes, inputs, positions)
    return found
