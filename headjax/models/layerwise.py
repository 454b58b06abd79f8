"""Computation of a model layer by layer, from hidden states that are given."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from headjax.core.tensors import Params
from headjax.models.compute import Compute, StackCall
from headjax.models.config import Batch, ModelConfig, Options
from headjax.models.hooks import Hooks, Joining, Reports
from headjax.models.layer import Probe, TransformerLayer
from headjax.models.stack import TransformerStack

FEED_FORWARD = "feed_forward"
"""Slot of the feed-forward sub-layer, beside `attention` and `cross_attention`."""


class Place(NamedTuple):
    """Layers of equal structure, which one program computes.

    Attributes:
        stack: name of the stack, `encoder` or `decoder`.
        group: number of the group of layers within `Stack.groups`.
    """

    stack: str
    group: int


class Stream(NamedTuple):
    """Hidden states between two layers.

    Attributes:
        hidden: `[batch, length, width]`, input of the next layer.
        memory: `[batch, key, width]`, the encoder's output for cross-attention; None without.
    """

    hidden: jax.Array
    memory: jax.Array | None = None


class SubLayerSeen(NamedTuple):
    """A sub-layer as it joins the residual stream: the stream becomes shortcut * stream + branch * output.

    Attributes:
        stream: `[batch, length, width]`, the residual stream before the sub-layer.
        output: `[batch, length, width]`, output of the sub-layer, bias included.
        features: `[batch, length, features]`, of which the output is a linear map: the heads' contexts side by side, or
            the inner activations of the feed-forward.
        mask: `[batch, length]` bool, False at padding; None without padding.
        shortcut, branch: `[width]`, factors of the sum.
    """

    stream: jax.Array
    output: jax.Array
    features: jax.Array
    mask: jax.Array | None
    shortcut: jax.Array
    branch: jax.Array


def stack_input(
    config: ModelConfig, params: Params, batch: Batch, stack: str, memory: jax.Array | None, compute: Compute
) -> Stream:
    """Return the input of a stack's first layer."""
    visit = _Visit(stack, memory)
    config.apply(params, batch, Options(compute=compute, hooks=visit))
    return Stream(visit.visited().x, memory)


def layer_output(
    config: ModelConfig,
    params: Params,
    batch: Batch,
    place: Place,
    number: jax.Array | int,
    weights: Params,
    stream: Stream,
    options: Options = Options(),
    watched: str | None = None,
) -> tuple[Stream, SubLayerSeen | None]:
    """Return the hidden states after one layer, and its watched sub-layer."""
    watching = None if watched is None else _Watching(watched)
    if watching is not None:
        options = options._replace(probe=watching.probe, hooks=watching)
    visit = _Visit(place.stack, stream.memory)
    config.apply(_outside(config, params), batch, options._replace(probe=None, hooks=visit))
    stack, _, call = visit.visited()
    call = stack.prepared(stream.hidden, call)._replace(probe=options.probe, hooks=options.hooks)
    group = stack.config.groups[place.group]
    layer = group.layer.bind(options.compute.cast(weights), config.width, config.width)
    hidden, _ = group.one(layer, stream.hidden, call, number)
    return stream._replace(hidden=hidden), None if watching is None else watching.seen


def _outside(config: ModelConfig, params: Params) -> Params:
    """Return the parameters outside the layers, which may be those of a model with other layers."""
    return params | {
        name: {own: entry for own, entry in params[name].items() if not own.startswith("layers_")}
        for name in config.stacks()
    }


def place_of(config: ModelConfig, stack: str, layer: int) -> Place:
    """Return the stack and the group of a layer."""
    groups = config.stacks()[stack].groups
    return Place(stack, next(i for i, group in enumerate(groups) if group.start <= layer < group.stop))


def stack_end(config: ModelConfig, params: Params, stack: str, stream: Stream, compute: Compute) -> jax.Array:
    """Return a stack's output: the hidden states after its last layer, normalised if the stack has a final norm."""
    own = {name: array for name, array in params[stack].items() if name == "final_norm"}
    output: jax.Array = config.stacks()[stack].bind(compute.cast(own), config.width, config.width).end(stream.hidden)
    return output


class _Visited(NamedTuple):
    """The call of a stack, as its model makes it."""

    stack: TransformerStack
    x: jax.Array
    call: StackCall


class _Visit(Hooks):
    """Hooks that note the call of one stack and compute none; the later computation is not read."""

    def __init__(self, name: str, memory: jax.Array | None) -> None:
        self._name, self._memory, self._calls = name, memory, []  # type: ignore[var-annotated]

    def stack(self, stack: TransformerStack, x: jax.Array, call: StackCall) -> tuple[jax.Array, list[Reports]]:
        if call.stack == self._name:
            self._calls.append(_Visited(stack, x, call))
        return x if self._memory is None or call.stack != "encoder" else self._memory, []

    def visited(self) -> _Visited:
        """Return the call of the stack."""
        (call,) = self._calls
        return cast(_Visited, call)


class _Watching(Hooks):
    """Hooks and probe of one layer that note the sub-layer in one slot.

    Attributes:
        seen: the sub-layer, after the layer's forward pass.
    """

    def __init__(self, slot: str) -> None:
        self.seen: SubLayerSeen | None = None
        self._slot, self._inner = slot, cast(Any, None)
        self._contexts: dict[str, jax.Array] = {}

    def probe(self, found: Probe) -> None:
        """Note the contexts of an attention."""
        context = found.attended.context
        self._contexts[found.slot] = context.reshape(*context.shape[:2], context.shape[2] * context.shape[3])

    def layer(self, layer: TransformerLayer, x: Any, call: Any) -> tuple[Any, Reports]:
        self._inner = layer.feed_forward.inner
        return layer(x, call)

    def join(self, joining: Joining) -> jax.Array:
        if joining.slot != self._slot:
            return super().join(joining)
        residual, x = joining.residual, joining.x
        inputs = residual.enter(x)
        output = joining.f(inputs)
        features = self._inner(inputs) if self._slot == FEED_FORWARD else self._contexts[self._slot]
        shortcut, branch = (jnp.broadcast_to(factor, x.shape[-1:]) for factor in residual.factors())
        self.seen = SubLayerSeen(x, output, features, joining.mask, shortcut, branch)
        return cast(jax.Array, residual.join(x, output))
