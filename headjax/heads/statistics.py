"""Where heads attend: statistics of their attention in a forward pass, and the positions that they look at."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import DataError, KernelError
from headjax.core.timing import one_behind
from headjax.heads.head_id import HeadId, all_heads, position
from headjax.mesh.distributed import fetch
from headjax.models.config import Batch
from headjax.models.inputs import counted_at, device_batch
from headjax.models.model import Model
from headjax.nn.operands import Mask
from headjax.nn.state import Compute, ForwardOptions, Probe


class Pattern(NamedTuple):
    """The attention pattern of one layer.

    Attributes:
        probabilities: `[batch, heads, query, key]`; None where a kernel holds none.
        queries: `[batch, query]` bool, False at padding; None without padding.
    """

    probabilities: jax.Array | None
    mask: Mask | None
    queries: jax.Array | None


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
    """Return the float64 sum of trees of arrays on devices, each fetched while the device computes the next one."""
    total: Any = None
    for number, part in enumerate(one_behind(parts)):
        fetched = fetch(part)
        if check is not None:
            check(number, fetched)
        if total is None:
            total = jax.tree.map(lambda array: np.array(array, np.float64), fetched)
        else:
            jax.tree.map(lambda sums, array: np.add(sums, array, out=sums), total, fetched)
    if total is None:
        raise DataError(f"batches: {empty}")
    return total


ROLES: Mapping[str, int | None] = {"previous": -1, "self": 0, "next": 1, "first": None}
"""Position of the key that a query attends to, relative to its own; None is the first key that is no padding."""


THRESHOLD = 0.9
"""Share of a head's queries that makes its role."""


class Role(NamedTuple):
    """Role of a head; NaN is the share of a key that no query could choose (`next` in a causal model).

    Attributes:
        shares: Shares of the queries that look there most, among those that may see that key and another.
        role: Role with the largest share, if that reaches `THRESHOLD`.
    """

    shares: dict[str, float]
    role: str | None


def head_roles(model: Model, batches: Iterable[Batch]) -> dict[HeadId, Role]:
    """Return the role of every head: positional if its largest weight is on one relative position in 90 % of cases.

    This definition is that of Voita et al. (2019), section 5.1. In cross-attention positions are those of the key
    sequence. Padding is left out.
    """
    config = model.config
    arrays = (device_batch(model.config, batch) for batch in batches)
    total = sum_over(_counts(model, batch) for batch in arrays)
    roles = {}
    for head in all_heads(config):
        hits, possible = total[head.stack][head.layer]
        with np.errstate(invalid="ignore"):
            shares = dict(zip(ROLES, (hits[:, position(config, head)] / possible).tolist(), strict=True))
        best = max(ROLES, key=lambda name: -1.0 if np.isnan(shares[name]) else shares[name])
        roles[head] = Role(shares, best if shares[best] >= THRESHOLD else None)
    return roles


@jax.jit
def _counts(model: Model, batch: Any) -> Any:
    """Return by head stack and layer how many queries have a role, `[roles, heads]`, and how many could, `[roles]`."""
    options = ForwardOptions(probe=role_counts, compute=Compute(attention="einsum"))
    return model.forward(batch, options).require_probes()


def role_counts(probe: Probe) -> tuple[jax.Array, jax.Array]:
    """Return how often each role was met, `[roles, heads]`, and how often it could have been, `[roles]`."""
    if probe.attended.context.shape[2] == 0:
        return jnp.zeros((len(ROLES), 0)), jnp.zeros(len(ROLES))
    pattern = Pattern(probe.attended.probabilities, probe.mask, probe.query_mask)
    weights = probabilities(pattern)
    query, key = weights.shape[2:]
    allowed = None if probe.mask is None else probe.mask.array(query, key)
    seen = jnp.ones((1, query, key), bool) if allowed is None else allowed[:, 0]
    choice = (visible_keys(pattern)[:, :, 0] > 1) & (counted_queries(pattern) > 0)
    largest = jax.nn.one_hot(weights.argmax(axis=-1), key)
    relative = offsets(weights)
    mask = Mask() if probe.mask is None else dataclasses.replace(probe.mask, causal=False, window=None)
    tokens = mask.array(query, key)
    first = jnp.zeros((1, 1), int) if tokens is None else tokens[:, 0].argmax(axis=-1)
    first_key = first[:, :, None] == jnp.arange(key)[None, None]  # of each query's example, behind padding
    hits, possible = [], []
    for offset in ROLES.values():
        target = first_key if offset is None else (relative == offset)[None]
        could = jnp.broadcast_to(target & seen & choice[:, :, None], (weights.shape[0], query, key))
        hits.append(jnp.einsum("bhqk,bqk->h", largest, could.astype(jnp.float32)))
        possible.append(could.sum())
    return jnp.stack(hits), jnp.stack(possible)
