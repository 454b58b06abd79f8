"""Head gates as arrays: by head stack, `[layers, max_heads]`, and with leading or inner axes for many at once.

A layer with fewer than max_heads heads uses the first columns and ignores the others.

    >>> model = headjax.demo_model()
    >>> gates = headjax.gates.without(model.config, headjax.all_heads(model.config)[:3])
    >>> {stack: (array.shape, int(array.sum())) for stack, array in gates.items()}
    {'decoder': ((4, 8), 29)}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from headjax.heads.head_id import HeadId, position
from headjax.models.config import Gates, ModelConfig

Values = Mapping[HeadId, float]
"""One number per head."""


def ones(config: ModelConfig) -> dict[str, jax.Array]:
    """Return gates of 1, which change nothing."""
    return {stack: jnp.ones(shape) for stack, shape in config.gate_shapes().items()}


def filled(config: ModelConfig, gates: Gates | None) -> Gates:
    """Return the gates of every head stack: the given ones, and 1 where none are given."""
    return ones(config) | dict(gates or {})


def without(config: ModelConfig, heads: Iterable[HeadId]) -> dict[str, jax.Array]:
    """Return gates that are 0 for the given heads and 1 for all others."""
    return {stack: gates[0] for stack, gates in without_each(config, [heads]).items()}


def only(config: ModelConfig, heads: Iterable[HeadId]) -> dict[str, jax.Array]:
    """Return gates that are 1 for the given heads and 0 for all others."""
    return {stack: 1.0 - gates for stack, gates in without(config, heads).items()}


def without_each(config: ModelConfig, removals: Sequence[Iterable[HeadId]]) -> dict[str, jax.Array]:
    """Return gates for many removals at once, `[removals, layers, max_heads]`, to vmap a forward pass over."""
    gates = {stack: np.ones((len(removals), *shape), np.float32) for stack, shape in config.gate_shapes().items()}
    for i, heads in enumerate(removals):
        for head in heads:
            column = position(config, head)
            gates[head.stack][i, head.layer, column] = 0.0
    return {stack: jnp.asarray(array) for stack, array in gates.items()}


def to_values(config: ModelConfig, arrays: Mapping[str, Any]) -> dict[HeadId, float]:
    """Return the entries of gate-shaped arrays `[layers, max_heads]` by head."""
    return {
        HeadId(stack, layer, head): float(arrays[stack][layer, column])
        for stack, layers in config.attentions().items()
        for layer, attention in enumerate(layers)
        for column, head in enumerate(attention.ids)
    }


def from_values(config: ModelConfig, values: Values, fill: float = 1.0) -> dict[str, jax.Array]:
    """Return gate-shaped arrays `[layers, max_heads]` of one number per head, `fill` for heads without one."""
    arrays = {stack: np.full(shape, fill, np.float32) for stack, shape in config.gate_shapes().items()}
    for head, value in values.items():
        column = position(config, head)
        arrays[head.stack][head.layer, column] = value
    return {stack: jnp.asarray(array) for stack, array in arrays.items()}
