"""Statistics of heads in a forward pass, each a function of a `Pattern`, and their sums over queries and batches.

Every statistic returns `[batch, query, heads]`; the engine sums over the queries that are not padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.ahead import one_behind
from headjax.core.errors import DataError, KernelError
from headjax.mesh.distributed import fetch
from headjax.models.inputs import counted_at
from headjax.nn.operands import Mask


class Pattern(NamedTuple):
    """What one attention attends to."""

    probabilities: jax.Array | None  # [batch, heads, query, key]; None where a kernel holds none
    mask: Mask | None
    queries: jax.Array | None  # [batch, query] bool, False at padding; None without padding


def entropy(seen: Pattern) -> jax.Array:
    """Return -sum_k p_k log p_k of each query's attention, in nats."""
    weights, total = _weights(seen)
    return jnp.swapaxes(jax.scipy.special.entr(weights).sum(axis=-1) / total + jnp.log(total), 1, 2)


def normalized_entropy(seen: Pattern) -> jax.Array:
    """Return the entropy over the logarithm of the number of visible keys: 0 for one key, 1 for all evenly."""
    visible = jnp.maximum(visible_keys(seen), 2)
    return entropy(seen) / jnp.log(visible.astype(jnp.float32))


def distance(seen: Pattern) -> jax.Array:
    """Return sum_k p_k |q - k|, the mean distance between query q and the keys that it attends to, in positions."""
    weights, total = _weights(seen)
    positions = jnp.abs(offsets(weights)).astype(weights.dtype)
    return jnp.swapaxes((weights * positions[None, None]).sum(axis=-1) / total, 1, 2)


STATISTICS: Mapping[str, Callable[[Pattern], jax.Array]] = {
    "entropy": entropy,
    "normalized_entropy": normalized_entropy,
    "distance": distance,
}
"""Statistics by name: functions that return one number per query and head, `[batch, query, heads]`."""


def counted_queries(seen: Pattern) -> jax.Array:
    """Return `[batch, query]`, 1.0 at tokens and 0.0 at padding."""
    batch, _, query, _ = _weights(seen)[0].shape
    return counted_at(seen.queries, (batch, query))


def probabilities(seen: Pattern) -> jax.Array:
    """Return attention probabilities `[batch, heads, query, key]` in float32."""
    weights, total = _weights(seen)
    return weights / total[..., None]


def _weights(seen: Pattern) -> tuple[jax.Array, jax.Array]:
    """Return absolute attention weights a `[batch, heads, query, key]` in float32 and their sums s over the keys.

    The probabilities are a / s. Means and entropies divide by s after the sum over keys, which saves an array of the
    size of a: -sum_k (a_k / s) log(a_k / s) = log s - sum_k a_k log(a_k) / s.
    """
    if seen.probabilities is None:
        raise KernelError("attention implementation: holds no probabilities to take statistics of; use einsum")
    weights = jnp.abs(seen.probabilities.astype(jnp.float32))
    return weights, jnp.maximum(weights.sum(axis=-1), jnp.finfo(jnp.float32).tiny)


def visible_keys(seen: Pattern) -> jax.Array:
    """Return the number of keys that each query may attend to, `[batch or 1, query, 1]`."""
    query, key = _weights(seen)[0].shape[2:]
    allowed = None if seen.mask is None else seen.mask.array(query, key)
    if allowed is None:
        return jnp.full((1, query, 1), key)
    return allowed.sum(axis=-1)[:, 0, :, None]


def offsets(weights: jax.Array) -> jax.Array:
    """Return the position `[query, key]` of key relative to query, for `weights [batch, heads, query, key]`."""
    query, key = weights.shape[2:]
    return jnp.arange(key)[None, :] - jnp.arange(query)[:, None]


def sum_over(
    parts: Iterable[Any], check: Callable[[int, Any], None] | None = None, empty: str = "there is no example"
) -> Any:
    """Return the sum of trees of arrays that live on devices, in float64 on the host.

    A tree is fetched while the device computes the next one.
    """
    total: Any = None
    for number, part in enumerate(one_behind(parts)):
        fetched = jax.tree.map(lambda array: np.asarray(array, np.float64), fetch(part))
        if check is not None:
            check(number, fetched)
        total = fetched if total is None else jax.tree.map(np.add, total, fetched)
    if total is None:
        raise DataError(f"batches: {empty}")
    return total
