"""Positions that enter as a bias of the attention logits."""

from __future__ import annotations

import abc
import dataclasses
import math

import jax
import jax.numpy as jnp

from headjax.core.errors import require
from headjax.core.fields import Checked, Size
from headjax.core.serialize import kind
from headjax.core.tensors import Params, Tensor, Tensors


@dataclasses.dataclass(frozen=True, kw_only=True)
class PositionBias(Checked, abc.ABC):
    """A bias of self-attention logits that depends on positions; all layers of a stack share it.

    Attributes:
        num_heads: number of original heads.
    """

    num_heads: Size

    @abc.abstractmethod
    def tensors(self) -> Tensors:
        """The declared parameters."""

    @abc.abstractmethod
    def __call__(self, params: Params, query: jax.Array, key: jax.Array) -> jax.Array:
        """`[batch or 1, query]` and `[batch or 1, key]` positions to `[batch or 1, heads, query, key]`.

        `heads` are all original heads; a layer that has lost some takes the columns of those it kept.
        """


@kind("relative_buckets")
@dataclasses.dataclass(frozen=True, kw_only=True)
class RelativeBuckets(PositionBias):
    """One learned number per head and bucket of key position - query position (T5; Raffel et al. 2020, section 2.1).

    Distances below half the buckets of their direction have a bucket each; those up to `max_distance` share buckets
    that grow geometrically, and all longer ones the last.

    Attributes:
        buckets: number of buckets.
        max_distance: the distance from which on all share one bucket.
        bidirectional: whether keys after the query have their own half of the buckets; otherwise they have distance 0,
            for causal attention, which never sees them.
    """

    buckets: Size = 32
    max_distance: Size = 128
    bidirectional: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.buckets % 4 == 0, "buckets", f"must be a multiple of 4, got {self.buckets}")
        require(
            self.max_distance > self.buckets // 2,
            "max_distance",
            f"must be above half the buckets ({self.buckets // 2}), got {self.max_distance}",
        )

    def tensors(self) -> Tensors:
        return {"table": Tensor((self.buckets, self.num_heads), (None, None))}

    def __call__(self, params: Params, query: jax.Array, key: jax.Array) -> jax.Array:
        buckets = self.bucket(key[:, None, :] - query[:, :, None])
        return jnp.moveaxis(jnp.take(params["table"], buckets, axis=0), -1, 1)

    def bucket(self, distance: jax.Array) -> jax.Array:
        """The bucket of each signed distance (key minus query)."""
        count = self.buckets // 2 if self.bidirectional else self.buckets
        first = jnp.where(distance > 0, count, 0) if self.bidirectional else jnp.zeros_like(distance)
        size = jnp.abs(distance) if self.bidirectional else jnp.maximum(-distance, 0)
        exact = count // 2
        growth = jnp.log(jnp.maximum(size, 1) / exact) / math.log(self.max_distance / exact)
        far = jnp.minimum(exact + (growth * (count - exact)).astype(distance.dtype), count - 1)
        return first + jnp.where(size < exact, size, far)
