"""Statistics of heads in a forward pass, each a function of a `Probe`, and their sums over queries and batches.

Every statistic returns `[batch, query, heads]`. `query_sums` sums over the queries that are not padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import DataError, KernelError
from headjax.mesh.distributed import fetch
from headjax.models.inputs import counted_at
from headjax.models.layer import Probe

Statistic = Callable[[Probe], jax.Array]
"""Function of a probe that returns one number per query and head, `[batch, query, heads]`."""


def entropy(probe: Probe) -> jax.Array:
    """Return -sum_k p_k log p_k of each query's attention, in nats."""
    weights, total = _weights(probe)
    return _by_query(jax.scipy.special.entr(weights).sum(axis=-1) / total + jnp.log(total))


def normalized_entropy(probe: Probe) -> jax.Array:
    """Return the entropy over the logarithm of the number of visible keys: 0 for one key, 1 for all evenly."""
    visible = jnp.maximum(visible_keys(probe), 2)
    return entropy(probe) / jnp.log(visible.astype(jnp.float32))


def distance(probe: Probe) -> jax.Array:
    """Return sum_k p_k |q - k|, the mean distance between query q and the keys that it attends to, in positions."""
    weights, total = _weights(probe)
    positions = jnp.abs(offsets(weights)).astype(weights.dtype)
    return _by_query((weights * positions[None, None]).sum(axis=-1) / total)


STATISTICS: Mapping[str, Statistic] = {
    "entropy": entropy,
    "normalized_entropy": normalized_entropy,
    "distance": distance,
}
"""Statistics by name."""


def query_sums(statistics: Sequence[Statistic]) -> Callable[[Probe], tuple[list[jax.Array], jax.Array]]:
    """Return the probe that sums each statistic over an example's queries.

    The probe returns one `[batch, heads]` per statistic, and the number of counted queries `[batch]`, without padding.
    """

    def probe_function(probe: Probe) -> tuple[list[jax.Array], jax.Array]:
        # Statistics are not differentiated; stop_gradient keeps their intermediate values out of the backward pass.
        attended, inputs = jax.lax.stop_gradient((probe.attended, probe.inputs))
        probe = probe._replace(attended=attended, inputs=inputs)
        counted = counted_queries(probe)
        sums = [jnp.where(counted[:, :, None] > 0, statistic(probe), 0.0).sum(axis=1) for statistic in statistics]
        return sums, counted.sum(axis=1)

    return probe_function


def counted_queries(probe: Probe) -> jax.Array:
    """Return `[batch, query]`, 1.0 at tokens and 0.0 at padding."""
    return counted_at(probe.query_mask, probe.attended.context.shape[:2])


def probabilities(probe: Probe) -> jax.Array:
    """Return attention probabilities `[batch, heads, query, key]` in float32."""
    weights, total = _weights(probe)
    return weights / total[..., None]


def _weights(probe: Probe) -> tuple[jax.Array, jax.Array]:
    """Return absolute attention weights a `[batch, heads, query, key]` in float32 and their sums s over the keys.

    The probabilities are a / s. Means and entropies divide by s after the sum over keys, which saves an array of the
    size of a: -sum_k (a_k / s) log(a_k / s) = log s - sum_k a_k log(a_k) / s.
    """
    found = probe.attended.probabilities
    context = probe.attended.context
    if found is None and context.shape[2] == 0:
        weights = jnp.zeros((context.shape[0], 0, context.shape[1], 1))
    elif found is None:
        raise KernelError("attention implementation: holds no probabilities to take statistics of; use einsum")
    else:
        weights = jnp.abs(found.astype(jnp.float32))
    return weights, jnp.maximum(weights.sum(axis=-1), jnp.finfo(jnp.float32).tiny)


def visible_keys(probe: Probe) -> jax.Array:
    """Return the number of keys that each query may attend to, `[batch or 1, query, 1]`."""
    query, key = _weights(probe)[0].shape[2:]
    allowed = None if probe.mask is None else probe.mask.array(query, key)
    if allowed is None:
        return jnp.full((1, query, 1), key)
    return allowed.sum(axis=-1)[:, 0, :, None]


def offsets(weights: jax.Array) -> jax.Array:
    """Return the position `[query, key]` of key relative to query, for `weights [batch, heads, query, key]`."""
    query, key = weights.shape[2:]
    return jnp.arange(key)[None, :] - jnp.arange(query)[:, None]


def _by_query(array: jax.Array) -> jax.Array:
    return jnp.swapaxes(array, 1, 2)


T = TypeVar("T")


def one_behind(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, each only after the next one has been asked for.

    Dispatch is asynchronous, so fetching an item leaves the device busy with the next one.
    """
    previous: list[T] = []
    for item in items:
        yield from previous
        previous = [item]
    yield from previous


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
