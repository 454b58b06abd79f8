"""Reusing the part of a forward pass that comes before a change: record the residual stream once, resume from it.

Whatever its architecture, a model computes its layers by calling the stacks in `config.stacks()`, in that order. Stacks
that record, replay or resume are put in their place for one forward. What then has no reader any more (embeddings,
earlier stacks) the compiler drops.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from headjax.core.tensors import Params
from headjax.models.config import Batch, ModelConfig, Options, Output
from headjax.models.layer import Layer, LayerCall
from headjax.models.observe import LayerForward, StackForward, variant
from headjax.models.stack import Stack, StackCall


class Recorded(NamedTuple):
    """What one stack computed for one batch.

    Attributes:
        streams: `[layers, batch, length, width]`, the residual stream entering each layer.
        output: `[batch, length, width]`, the stack's output.
    """

    streams: jax.Array
    output: jax.Array


def record(config: ModelConfig, params: Params, batch: Batch, options: Options) -> tuple[Output, dict[str, Recorded]]:
    """The model's output, and what every stack computed on the way."""
    recorded: dict[str, Recorded] = {}
    stacks = {name: _recording(stack, name, recorded) for name, stack in config.stacks().items()}
    return config.replace_stacks(stacks).apply(params, batch, options), recorded


def resume(
    config: ModelConfig,
    params: Params,
    batch: Batch,
    options: Options,
    recorded: Mapping[str, Recorded],
    stack: str,
    start: jax.Array,
) -> Output:
    """The model's output, computed from layer `start` of a stack on.

    It equals the whole forward with these options if they differ from the recorded forward's only in what layers of
    `stack` from `start` on and later stacks do. One compilation serves every `start`. Under a vmap over gates with one
    `start` for all, attention of layer `start` is computed once for all.

    Args:
        config, params, batch, options: as for the whole forward; no dropout and no probe.
        recorded: what `record` returned for this batch.
        stack: name of the stack, a key of `config.stacks()`.
        start: layer to start from, a scalar integer.
    """
    stacks = config.stacks()
    order = list(stacks)
    changed = {name: _replaying(stacks[name], recorded[name].output) for name in order[: order.index(stack)]}
    stream = jax.lax.dynamic_index_in_dim(recorded[stack].streams, start, keepdims=False)
    changed[stack] = _resuming(stacks[stack], stream, start)
    return config.replace_stacks(stacks | changed).apply(params, batch, options)


def _recording(base: Stack, name: str, recorded: dict[str, Recorded]) -> Stack:
    def recording_layer(layer: Layer) -> LayerForward:
        return lambda params, x, call: (layer(params, x, call)[0], {"entering": x})

    def forward(stack: Stack) -> StackForward:
        def call_stack(params: Params, x: jax.Array, call: StackCall) -> tuple[jax.Array, list[dict[str, Any]]]:
            output, probed = type(base).__call__(stack, params, x, call)
            recorded[name] = Recorded(jnp.stack([layer["entering"] for layer in probed]), output)
            return output, probed

        return call_stack

    return variant(base, recording_layer, forward)


def _replaying(base: Stack, output: jax.Array) -> Stack:
    return variant(base, lambda layer: layer, lambda stack: lambda params, x, call: (output, []))


def _resuming(base: Stack, stream: jax.Array, start: jax.Array) -> Stack:
    def resuming_layer(layer: Layer) -> LayerForward:
        def call_layer(params: Params, x: jax.Array, call: LayerCall) -> tuple[jax.Array, dict[str, Any]]:
            def apply(x: jax.Array) -> jax.Array:
                return layer(params, x, call)[0]

            # The first layer reads the recorded stream itself and not the carry, which a vmap over gates turns into
            # one copy per gate: this way its projections and attention are computed once for all of them.
            branch = jnp.clip(call.number - start + 1, 0, 2)
            return jax.lax.switch(branch, [lambda x: x, lambda x: apply(stream), apply], x), {}

        return call_layer

    return variant(
        base, resuming_layer, lambda stack: lambda params, x, call: type(base).__call__(stack, params, stream, call)
    )
