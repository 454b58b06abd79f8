"""Hooks: what one trace does at the stacks, layers and sub-layers of a forward pass, besides computing them.

A forward pass calls its hooks around every stack, layer and sub-layer. They may read what passes, replace it, or leave
parts of the computation out, which the compiler then drops. Groups of layers stay scans, so that the program does not
grow with depth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from headjax.core.tensors import Params
from headjax.models.residuals import Residual

SubLayer = Callable[[jax.Array], jax.Array]
"""f, `[batch, length, width]` to the same shape, with its parameters and its dropout inside."""

Reports = dict[str, Any]
"""What a layer reports by name: results of a probe, and of hooks. A scan stacks the reports of a group's layers."""


class Joining(NamedTuple):
    """A sub-layer about to join the residual stream.

    Attributes:
        slot: `attention`, `cross_attention` or `feed_forward`.
        residual: how it joins.
        params: the residual connection's parameters.
        x: `[batch, length, width]`, the stream.
        f: the sub-layer.
        mask: `[batch, length]` bool, False at padding; None without padding.
    """

    slot: str
    residual: Residual
    params: Params
    x: jax.Array
    f: SubLayer
    mask: jax.Array | None


LayerForward = Callable[[Params, jax.Array, Any], tuple[jax.Array, Reports]]
"""(parameters, x, `LayerCall`) to the layer's output and its reports."""


class Hooks:
    """Base of the hooks: these change nothing."""

    def stack(self, stack: Any, params: Params, x: jax.Array, call: Any) -> tuple[jax.Array, list[Reports]]:
        """Return a stack's output `[batch, length, width]` and the reports of its layers.

        Args:
            stack: the `Stack`.
            params: its parameters.
            x: `[batch, length, width]`, its input.
            call: the `StackCall`, with the stack's name.
        """
        output: tuple[jax.Array, list[Reports]] = stack.forward(params, x, call)
        return output

    def layer(self, forward: LayerForward, params: Params, x: Any, call: Any) -> tuple[Any, Reports]:
        """Return a layer's output and its reports; what stands in the place of x goes on to the next layer.

        Args:
            forward: the layer.
            params: its parameters.
            x: `[batch, length, width]`, its input.
            call: the `LayerCall`.
        """
        return forward(params, x, call)

    def join(self, joining: Joining) -> jax.Array:
        """Return the stream after a sub-layer."""
        _, residual, params, x, f, _ = joining
        return residual.join(params, x, f(residual.enter(params, x)))
