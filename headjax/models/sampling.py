"""Samplers: from a model's logits to the next token."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from headjax.core.errors import require
from headjax.core.fields import Checked, Count

Sampler = Callable[[jax.Array, jax.Array], jax.Array]
"""Chooses tokens `[batch]` from logits `[batch, vocabulary]` with a PRNG key."""


@dataclasses.dataclass(frozen=True)
class Greedy(Checked):
    """The most likely token.

    >>> headjax.generate(headjax.demo_model(), "for name in", sampler=headjax.Greedy(), max_new_tokens=4)
    ' the name of the'
    """

    def __call__(self, logits: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.argmax(logits, axis=-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample(Checked):
    """A token drawn from softmax(logits / temperature), cut to the likely ones and scaled up again.

        >>> sampler = headjax.Sample(temperature=0.8, top_k=50)
        >>> headjax.generate(headjax.demo_model(), "for name in", sampler=sampler, seed=1, max_new_tokens=4)
        ' name.children:'

    Attributes:
        temperature: below 1 sharpens, above 1 flattens.
        top_k: how many of the likeliest tokens may be drawn; 0 is all.
        top_p: draws from the smallest set of likeliest tokens whose probabilities, after the cut to top_k, sum to at
            least this (Holtzman et al. 2020, section 3.1).
    """

    temperature: float = 1.0
    top_k: Count = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.temperature > 0, "temperature", f"must be positive (greedy is its own sampler), got {self.temperature}"
        )
        require(0.0 < self.top_p <= 1.0, "top_p", f"must be above 0 and at most 1, got {self.top_p}")

    def __call__(self, logits: jax.Array, key: jax.Array) -> jax.Array:
        return jax.random.categorical(key, self.cut(logits), axis=-1)

    def cut(self, logits: jax.Array) -> jax.Array:
        """The scaled logits, -inf for tokens that cannot be drawn."""
        logits = logits / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            lowest = jax.lax.top_k(logits, self.top_k)[0][..., -1:]
            logits = jnp.where(logits >= lowest, logits, -jnp.inf)
        if self.top_p < 1.0:
            order = jnp.argsort(logits, axis=-1, descending=True)
            sorted_probabilities = jnp.take_along_axis(jax.nn.softmax(logits, axis=-1), order, axis=-1)
            # A token stays while those likelier than it sum to less than top_p, so the likeliest always does.
            before = jnp.cumsum(sorted_probabilities, axis=-1) - sorted_probabilities
            kept = jnp.zeros(logits.shape, bool)
            kept = jnp.put_along_axis(kept, order, before < self.top_p, axis=-1, inplace=False)
            logits = jnp.where(kept, logits, -jnp.inf)
        return logits
