"""Differentiable subset gates: exactly k heads stay (Li et al. 2021, Differentiable Subset Pruning)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from headjax.core.errors import HeadjaxError, require
from headjax.core.fields import Positive, Size
from headjax.heads.learned_gates import GateDistribution, Logits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subset(GateDistribution):
    """A relaxed sample of k heads out of all, which hardens as the temperature falls.

        r = w + Gumbel noise;  k times: p = softmax(r / tau), gate += p, r += log(1 - p)

    The gates of a sample always sum to k. tau falls geometrically over the training. The final gates are 1 for the k
    heads with the largest w and 0 for all others.

    Attributes:
        count: k, the number of heads to keep.
        initial: w to start from.
        start, end: tau at the beginning and at the end; the paper's go from 1000 to 1e-8 in 25,000 steps.
    """

    count: Size
    initial: float = 0.0
    start: Positive = 1000.0
    end: Positive = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.start >= self.end, "end", f"must be at most {self.start}, got {self.end}")

    def check(self, total: int) -> None:
        if self.count > total:
            raise HeadjaxError(f"count: {self.count} heads to keep, the model has {total}")

    def sample(self, logits: Logits, key: jax.Array, progress: jax.Array) -> Logits:
        flat, restore = _ravel(logits)
        temperature = self.start * (self.end / self.start) ** progress
        noisy = flat + jax.random.gumbel(key, flat.shape)
        return restore(relaxed_top_k(noisy, self.count, temperature))

    def penalty(self, logits: Logits) -> jax.Array:
        return jnp.zeros(())

    def final(self, logits: Logits) -> Logits:
        flat, restore = _ravel(logits)
        kept = jnp.argsort(-flat, stable=True)[: self.count]
        return restore(jnp.zeros_like(flat).at[kept].set(1.0))


def relaxed_top_k(r: jax.Array, count: int, temperature: jax.Array | float) -> jax.Array:
    """Weights in [0, 1] that sum to `count` and tend to the indicator of the largest entries as the temperature falls.

    Args:
        r: `[heads]`; -inf for entries that cannot be taken.
        count: how many to take, at most the number of finite entries.
        temperature: of the softmax.
    """
    # With 1 - p from below bounded, an entry taken whole drops far below the others without becoming -inf, whose
    # difference with itself is not a number.
    smallest = 1e-30

    def take(r: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        p = jax.nn.softmax(r / temperature)
        return r + jnp.log(jnp.maximum(1.0 - p, smallest)), p

    _, taken = jax.lax.scan(take, r, None, length=count)
    return taken.sum(axis=0)


def _ravel(logits: Logits) -> tuple[jax.Array, Callable[[jax.Array], Logits]]:
    return ravel_pytree(logits)
