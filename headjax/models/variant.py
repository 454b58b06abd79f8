"""Stacks with another forward, for the trace of one forward pass: what records, replays or observes a model.

Whatever its architecture, a model computes its layers by calling the stacks in `config.stacks()`; a variant put in a
stack's place with `config.replace_stacks` changes what happens there and nothing else. Variants are never saved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import jax

from headjax.core.tensors import Params
from headjax.models.layer import Layer, LayerCall
from headjax.models.run import Run, StackCall
from headjax.models.stack import Stack

LayerForward = Callable[[Params, jax.Array, LayerCall], tuple[jax.Array, dict[str, Any]]]
StackForward = Callable[[Params, jax.Array, StackCall], tuple[jax.Array, list[dict[str, Any]]]]


def variant(
    base: Stack, layer_forward: Callable[[Layer], LayerForward], stack_forward: Callable[[Stack], StackForward]
) -> Stack:
    """The same stack with another forward of its layers and of itself, for the trace of one forward pass only."""

    class Variant(type(base)):  # type: ignore[misc]
        @property
        def runs(self) -> tuple[Run, ...]:
            return tuple(
                dataclasses.replace(run, layer=_Forward(run.layer, layer_forward(run.layer))) for run in super().runs
            )

        def __call__(self, params: Params, x: jax.Array, call: StackCall) -> tuple[jax.Array, list[dict[str, Any]]]:
            return stack_forward(self)(params, x, call)

    fields = {field.name: getattr(base, field.name) for field in dataclasses.fields(base)}
    return cast(Stack, Variant(**fields))


class _Forward:
    """A layer with another forward."""

    def __init__(self, layer: Layer, forward: LayerForward) -> None:
        self._layer = layer
        self._forward = forward

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    def __call__(self, params: Params, x: jax.Array, call: LayerCall) -> tuple[jax.Array, dict[str, Any]]:
        return self._forward(params, x, call)
