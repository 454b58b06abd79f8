"""Attention patterns of heads: the positions that they attend to."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.heads.head_id import HeadId
from headjax.heads.statistics import Pattern, counted_queries, offsets, probabilities, sum_over, visible_keys
from headjax.models.config import Batch
from headjax.models.inputs import device_batch
from headjax.models.model import Model
from headjax.nn.compute import Compute
from headjax.nn.layer import Probe
from headjax.nn.operands import Mask
from headjax.nn.passes import Pass

ROLES: Mapping[str, int | None] = {"previous": -1, "self": 0, "next": 1, "first": None}
"""Position of the key that a query attends to, relative to its own; None is the first key that is no padding."""


class Role(NamedTuple):
    """Role of one head.

    Shares are those of the queries whose largest attention weight is on a key, among the queries that may see it and at
    least one other; NaN without such queries (`next` in a causal model).
    """

    shares: dict[str, float]
    role: str | None  # with the largest share if that reaches the threshold


def head_roles(
    model: Model,
    batches: Iterable[Batch],
    *,
    threshold: float = 0.9,
    compute: Compute = Compute(attention="einsum"),
) -> dict[HeadId, Role]:
    """Return the role of every head: positional if its largest weight is on one relative position in 90 % of cases.

    This definition is that of Voita et al. (2019), section 5.1. In cross-attention positions are those of the key
    sequence. Padding is left out.
    """
    config = model.config
    arrays = (device_batch(model.config, batch) for batch in batches)
    total = sum_over(_counts(model, batch, compute) for batch in arrays)
    roles = {}
    for stack, layers in config.attentions().items():
        for layer, attention in enumerate(layers):
            hits, possible = total[stack][layer]
            with np.errstate(invalid="ignore"):
                shares = hits / possible[:, None]
            for column, head in enumerate(attention.ids):
                roles[HeadId(stack, layer, head)] = _role(shares[:, column], threshold)
    return roles


def _role(shares: np.ndarray, threshold: float) -> Role:
    named = dict(zip(ROLES, shares.tolist(), strict=True))
    best = max(named, key=lambda name: -1.0 if np.isnan(named[name]) else named[name])
    return Role(named, best if named[best] >= threshold else None)


@functools.partial(jax.jit, static_argnames="compute")
def _counts(model: Model, batch: Any, compute: Compute) -> Any:
    """Return by head stack and layer the queries `[roles, heads]` that look there and those `[roles]` that could."""
    options = Pass(probe=_role_counts, compute=compute)
    return model.forward(batch, options).require_probes()


def _role_counts(probe: Probe) -> tuple[jax.Array, jax.Array]:
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
    hits, possible = [], []
    for offset in ROLES.values():
        target = _first_key(probe, query, key) if offset is None else (relative == offset)[None]
        could = jnp.broadcast_to(target & seen & choice[:, :, None], (weights.shape[0], query, key))
        hits.append(jnp.einsum("bhqk,bqk->h", largest, could.astype(jnp.float32)))
        possible.append(could.sum())
    return jnp.stack(hits), jnp.stack(possible)


def _first_key(probe: Probe, query: int, key: int) -> jax.Array:
    """Return `[batch or 1, query or 1, key]` bool, True at the first token of a query's example, behind padding."""
    mask = Mask() if probe.mask is None else dataclasses.replace(probe.mask, causal=False, window=None)
    together = mask.array(query, key)
    first = jnp.zeros((1, 1), int) if together is None else together[:, 0].argmax(axis=-1)
    return first[:, :, None] == jnp.arange(key)[None, None]
