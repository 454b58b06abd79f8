"""Computation of a model layer by layer, from hidden states that are given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from headjax.core.tensors import Params
from headjax.models.compute import Compute, StackCall
from headjax.models.config import Batch, ModelConfig, Options
from headjax.models.layer import Layer, Probe, Residual, SubLayer
from headjax.models.observe import Watched
from headjax.models.stack import Stack

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


def slots(layer: Layer) -> tuple[str, ...]:
    """Return the slots of a layer's sub-layers in the order of computation."""
    return tuple(name.removesuffix("_residual") for name in layer.residual_slots)


def stack_input(
    config: ModelConfig, params: Params, batch: Batch, stack: str, memory: jax.Array | None, compute: Compute
) -> Stream:
    """Return what enters the first layer of a stack.

    Args:
        config, params: the model.
        batch: the batch.
        stack: name of the stack.
        memory: the encoder's output, for a decoder with cross-attention.
        compute: how to compute.
    """
    found: list[jax.Array] = []

    def note(own: Stack, own_params: Params, x: jax.Array, call: StackCall) -> None:
        found.append(x)

    _apply(config, params, batch, {stack: note}, memory, Options(compute=compute))
    return Stream(found[0], memory)


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
    """Return the hidden states after one layer, and its watched sub-layer.

    Args:
        config, params: the model; of its parameters only those outside the layers are read.
        batch: the batch, for its masks and positions.
        place: the layer's stack and group.
        number: number of the layer in its stack; it may be traced.
        weights: parameters of the layer, an entry of `Stack.unstack`.
        stream: its input.
        options: gates, and how to compute.
        watched: slot of the sub-layer to return, or None.
    """
    outputs: list[jax.Array] = []
    seen: list[SubLayerSeen] = []

    def compute_layer(stack: Stack, own_params: Params, x: jax.Array, call: StackCall) -> None:
        group = stack.groups[place.group]
        call = stack.prepared(own_params, stream.hidden, call)
        own = options.compute.cast(weights)
        if watched is not None:
            layer, call = _watch(group.layer, watched, own, call, seen)
            group = dataclasses.replace(group, layer=layer)
        outputs.append(group.one(own, stream.hidden, call, number)[0])

    _apply(config, params, batch, {place.stack: compute_layer}, stream.memory, options)
    return stream._replace(hidden=outputs[0]), seen[0] if seen else None


def probed_layer(
    config: ModelConfig,
    params: Params,
    batch: Batch,
    place: Place,
    number: jax.Array | int,
    weights: Params,
    stream: Stream,
    options: Options,
) -> tuple[Stream, dict[str, Any]]:
    """Return the hidden states after one layer, and the results of the options' probe by slot.

    Args:
        config, params, batch, place, number, weights, stream: as of `layer_output`.
        options: gates, probe, and how to compute.
    """
    found: list[tuple[jax.Array, dict[str, Any]]] = []

    def compute_layer(stack: Stack, own_params: Params, x: jax.Array, call: StackCall) -> None:
        call = stack.prepared(own_params, stream.hidden, call)._replace(probe=options.probe)
        own = options.compute.cast(weights)
        found.append(stack.groups[place.group].one(own, stream.hidden, call, number))

    _apply(config, params, batch, {place.stack: compute_layer}, stream.memory, options._replace(probe=None))
    hidden, reports = found[0]
    return stream._replace(hidden=hidden), reports


def place_of(config: ModelConfig, stack: str, layer: int) -> Place:
    """Return the stack and the group of a layer."""
    groups = config.stacks()[stack].groups
    return Place(stack, next(i for i, group in enumerate(groups) if group.start <= layer < group.stop))


def stack_end(config: ModelConfig, params: Params, stack: str, stream: Stream, compute: Compute) -> jax.Array:
    """Return a stack's output: the hidden states after its last layer, normalised if the stack has a final norm."""
    return config.stacks()[stack].end(compute.cast(params[stack]), stream.hidden)


Visit = Callable[[Stack, Params, jax.Array, StackCall], None]


def _apply(
    config: ModelConfig,
    params: Params,
    batch: Batch,
    visits: Mapping[str, Visit],
    memory: jax.Array | None,
    options: Options,
) -> None:
    """Trace the model with every stack replaced by the visit of its name; what follows from the output is not read."""

    def replaced(name: str, base: Stack) -> Stack:
        class Visited(type(base)):  # type: ignore[misc]
            def __call__(self, own: Params, x: jax.Array, call: StackCall) -> tuple[jax.Array, list[dict[str, Any]]]:
                if name in visits:
                    visits[name](base, own, x, call)
                return x if memory is None or name != "encoder" else memory, []

        return cast(Stack, Visited(**{field.name: getattr(base, field.name) for field in dataclasses.fields(base)}))

    stacks = {name: replaced(name, stack) for name, stack in config.stacks().items()}
    config.replace_stacks(stacks).apply(params, batch, options)


def _watch(
    layer: Layer, slot: str, weights: Params, call: StackCall, seen: list[SubLayerSeen]
) -> tuple[Layer, StackCall]:
    """Return the layer and its call so that they note the sub-layer in this slot."""
    contexts: dict[str, jax.Array] = {}
    order = iter(slots(layer))

    def probe(found: Probe) -> None:
        context = found.attended.context
        contexts[found.slot] = context.reshape(*context.shape[:2], context.shape[2] * context.shape[3])

    def join(residual: Residual, params: Params, x: jax.Array, f: SubLayer) -> jax.Array:
        if next(order) != slot:
            return residual(params, x, f)
        inputs: list[jax.Array] = []
        outputs: list[jax.Array] = []

        def noting(given: jax.Array) -> jax.Array:
            inputs.append(given)
            outputs.append(f(given))
            return outputs[0]

        joined = residual(params, x, noting)
        if slot == FEED_FORWARD:
            features = layer.feed_forward.inner(weights[FEED_FORWARD], inputs[0])
        else:
            features = contexts[slot]
        shortcut, branch = (jnp.broadcast_to(factor, x.shape[-1:]) for factor in residual.factors(params))
        seen.append(SubLayerSeen(x, outputs[0], features, call.query_mask, shortcut, branch))
        return joined

    return dataclasses.replace(layer, residual=Watched(layer.residual, join)), call._replace(probe=probe)
