"""Stacks with another forward pass for one trace, and the observation of every sub-layer by them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from headjax.core.norms import Norm
from headjax.core.tensors import Params, Tensors
from headjax.models.compute import LayerGroup, StackCall
from headjax.models.config import ModelConfig
from headjax.models.layer import Layer, LayerCall, Residual, SubLayer
from headjax.models.stack import Stack

LayerForward = Callable[[Params, jax.Array, LayerCall], tuple[jax.Array, dict[str, Any]]]


StackForward = Callable[[Params, jax.Array, StackCall], tuple[jax.Array, list[dict[str, Any]]]]


def variant(
    base: Stack, layer_forward: Callable[[Layer], LayerForward], stack_forward: Callable[[Stack], StackForward]
) -> Stack:
    """Return the same stack with another forward of its layers and of itself, for one trace."""

    class Variant(type(base)):  # type: ignore[misc]
        @property
        def groups(self) -> tuple[LayerGroup, ...]:
            return tuple(
                dataclasses.replace(group, layer=_Forward(group.layer, layer_forward(group.layer)))
                for group in super().groups
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


_OBSERVED = "observed"
"""Key under which an observed layer reports, beside the probe's results."""


class Joining(NamedTuple):
    """A sub-layer about to join the residual stream.

    Attributes:
        residual: how it joins.
        params: the residual connection's parameters.
        x: `[batch, length, width]`, the stream.
        f: the sub-layer.
        mask: `[batch, length]` bool, False at padding; None without padding.
    """

    residual: Residual
    params: Params
    x: jax.Array
    f: SubLayer
    mask: jax.Array | None


Observer = Callable[[Joining, Any], tuple[jax.Array, Any, Any]]
"""(sub-layer, state) to the stream after it, the state for the next sub-layer, and its record."""


Observed = dict[str, list[Any]]
"""By stack, the records of its sub-layers, in the order of computation."""


def observe(config: ModelConfig, observer: Observer, state: Any = ()) -> tuple[ModelConfig, Observed]:
    """Return the same model for one trace, and the records that its forward fills in.

    Call it inside the traced function, which returns the records with its other results. Groups of layers
    stay scans, so that the program does not grow with depth.

    Args:
        config: the architecture.
        observer: computes a sub-layer in the residual connection's place.
        state: state that the first sub-layer of each stack receives; its shapes and types stay.
    """
    observed: Observed = {}
    stacks = {name: _observing(stack, name, observer, state, observed) for name, stack in config.stacks().items()}
    return config.replace_stacks(stacks), observed


def variance(x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Return the variance of `[batch, length, width]`, or of its values at tokens that `mask` marks, in float32.

    It is NaN where the mask marks none.
    """
    x = x.astype(jnp.float32)
    if mask is None:
        return jnp.var(x)
    counted = jnp.broadcast_to(mask[:, :, None], x.shape)
    return jnp.var(x, where=counted)


class _Stream(NamedTuple):
    """The hidden states of an observed stack, and the observer's state."""

    hidden: jax.Array
    state: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return self.hidden.shape


@dataclasses.dataclass(frozen=True)
class Watched(Residual):
    """Residual connections of a layer during one trace, with another function in their place.

    Attributes:
        inner: the residual connection itself.
        join: called as `join(inner, params, x, f)` instead of it.
    """

    inner: Residual
    join: Callable[[Residual, Params, jax.Array, SubLayer], jax.Array]

    @property
    def norm(self) -> Norm | None:
        return self.inner.norm

    def tensors(self, width: int) -> Tensors:
        return self.inner.tensors(width)

    def __call__(self, params: Params, x: jax.Array, f: SubLayer) -> jax.Array:
        return self.join(self.inner, params, x, f)


def _observing(base: Stack, name: str, observer: Observer, state: Any, observed: Observed) -> Stack:
    def observing_layer(layer: Layer) -> LayerForward:
        def call_layer(params: Params, stream: Any, call: LayerCall) -> tuple[Any, dict[str, Any]]:
            state, records = stream.state, []

            def join(residual: Residual, weights: Params, x: jax.Array, f: SubLayer) -> jax.Array:
                nonlocal state
                x, state, record = observer(Joining(residual, weights, x, f, call.query_mask), state)
                records.append(record)
                return x

            watched = dataclasses.replace(layer, residual=Watched(layer.residual, join))
            hidden, reports = watched(params, stream.hidden, call)
            return _Stream(hidden, state), reports | {_OBSERVED: records}

        return call_layer

    def forward(stack: Stack) -> StackForward:
        def call_stack(params: Params, x: jax.Array, call: StackCall) -> tuple[jax.Array, list[dict[str, Any]]]:
            bare = dataclasses.replace(stack, final_norm=None)
            stream: Any = _Stream(x, state)
            stream, reports = type(base).__call__(bare, params, stream, call)
            observed[name] = [record for layer in reports for record in layer.pop(_OBSERVED)]
            return stack.end(params, stream.hidden), reports

        return call_stack

    return variant(base, observing_layer, forward)
