"""Hooks: additions to one trace of a forward pass's stacks, layers and sub-layers.

A forward pass calls its hooks around every stack, layer and sub-layer. Hooks may read or replace values, or skip parts
of the computation, which the compiler then drops. Groups of layers stay scans, so that the program does not grow with
depth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

SubLayer = Callable[[jax.Array], jax.Array]
"""f, `[batch, length, width]` to the same shape, with its parameters and its dropout inside."""

Reports = dict[str, Any]
"""A layer's reports by name: results of a probe, and of hooks. A scan stacks the reports of a group's layers."""


class Joining(NamedTuple):
    """A sub-layer about to join the residual stream.

    Attributes:
        slot: `attention`, `cross_attention` or `feed_forward`.
        residual: module of the residual connection.
        x: `[batch, length, width]`, the stream.
        f: the sub-layer.
        mask: `[batch, length]` bool, False at padding; None without padding.
    """

    slot: str
    residual: Any
    x: jax.Array
    f: SubLayer
    mask: jax.Array | None


class Hooks:
    """Base of the hooks: these change nothing."""

    def stack(self, stack: Any, x: jax.Array, call: Any) -> tuple[jax.Array, list[Reports]]:
        """Return a stack's output `[batch, length, width]` and the reports of its layers."""
        output: tuple[jax.Array, list[Reports]] = stack.forward(x, call)
        return output

    def layer(self, layer: Any, x: Any, call: Any) -> tuple[Any, Reports]:
        """Return a layer's output and its reports; what stands in the place of x enters the next layer."""
        output: tuple[Any, Reports] = layer(x, call)
        return output

    def join(self, joining: Joining) -> jax.Array:
        """Return the stream after a sub-layer."""
        _, residual, x, f, _ = joining
        stream: jax.Array = residual.join(x, f(residual.enter(x)))
        return stream
