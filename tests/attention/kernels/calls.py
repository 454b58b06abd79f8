"""Calls to `attend` that kernels are compared on."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from headjax.attention import Mask

BATCH, QUERIES, KEYS, HEADS = 2, 12, 12, 4
SUMS = 8 + 2 * KEYS
"""Terms on the way to a context: logits of `inputs`, softmax and context over the keys. A gradient goes it twice."""


def normal(*shape: int, seed: int) -> Any:
    """Standard normal numbers."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def inputs(
    *, qk_dim: int = 8, value_dim: int = 8, key_heads: int = HEADS, value_heads: int = HEADS, length: int = KEYS
) -> tuple[Any, Any, Any]:
    """Query, key and value."""
    return (
        normal(BATCH, length, HEADS, qk_dim, seed=0),
        normal(BATCH, length, key_heads, qk_dim, seed=1),
        normal(BATCH, length, value_heads, value_dim, seed=2),
    )


def masks(length: int = KEYS) -> dict[str, Mask]:
    """Masks of every condition; every query may see some key."""
    present = np.random.default_rng(3).uniform(size=(BATCH, length)) < 0.7
    present[:, 0] = True
    segments = jnp.asarray(np.repeat([[0, 1]], BATCH, axis=0).repeat(length // 2, axis=1))
    return {
        "none": Mask(),
        "causal": Mask(causal=True),
        "padding": Mask(keys=jnp.asarray(present)),
        "causal and padding": Mask(causal=True, keys=jnp.asarray(present)),
        "causal and packed": Mask(causal=True, query_segments=segments, key_segments=segments),
        "window": Mask(window=3),
        "causal and window": Mask(causal=True, window=3),
    }
