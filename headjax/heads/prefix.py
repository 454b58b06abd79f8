"""Reuse the part of a forward pass before a change: record the residual stream once, resume from it, chunk by chunk.

Every model computes its layers by calling the stacks in `config.stacks()`, in that order. Stacks that record, replay or
resume take their place for one forward pass. The compiler then drops the parts that nothing reads any more (embeddings,
earlier stacks).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from headjax.core.errors import HeadjaxError
from headjax.core.tensors import Params
from headjax.heads.head_id import HeadId
from headjax.models.compute import StackCall
from headjax.models.config import Batch, ModelConfig, Options, Output
from headjax.models.layer import Layer, LayerCall
from headjax.models.observe import LayerForward, StackForward, variant
from headjax.models.stack import Stack


class Recorded(NamedTuple):
    """Recorded forward pass of one stack for one batch.

    Attributes:
        streams: `[layers, batch, length, width]`, residual stream entering each layer.
        output: `[batch, length, width]`, output of the stack.
    """

    streams: jax.Array
    output: jax.Array


def record(config: ModelConfig, params: Params, batch: Batch, options: Options) -> tuple[Output, dict[str, Recorded]]:
    """Return the model's output and the record of every stack."""
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
    """Return the model's output, computed from layer `start` of a stack on.

    The result is that of the whole forward pass if the options differ from the recorded ones only for layers of
    `stack` from `start` on and for later stacks. One compilation serves every `start`. Under a vmap over gates with one
    `start` for all, attention of layer `start` is computed once for all.

    Args:
        config, params, batch, options: Those of the whole forward pass, without dropout and probe.
        recorded: Result of `record` for this batch.
        stack: Name of the stack, a key of `config.stacks()`.
        start: Layer to start from, a scalar integer.
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


class Chunk(NamedTuple):
    """Heads of one layer that are ablated together.

    Attributes:
        layer: Layer of the heads.
        heads: At most `size` heads.
        size: Size of every chunk of the sweep; smaller chunks are filled up.
    """

    layer: int
    heads: tuple[HeadId, ...]
    size: int

    @property
    def padded(self) -> tuple[HeadId, ...]:
        """The heads, the last one repeated up to `size`."""
        return self.heads + self.heads[-1:] * (self.size - len(self.heads))


def chunks_of(heads: Sequence[HeadId], limit: int) -> list[Chunk]:
    """Return the heads of one head stack in chunks of at most `limit`.

    All chunks have the same size, so that they share a program: the size that takes the least work, repeated heads
    included. The work of a chunk beside its ablations counts as one ablation more.
    """
    counts = Counter(head.layer for head in heads)
    layers = max(counts) + 1

    def cost(size: int) -> int:
        return sum(-(-count // size) * (size + 1) * (layers - layer) for layer, count in counts.items())

    size = min(range(1, min(limit, max(counts.values())) + 1), key=cost)
    chunks: list[Chunk] = []
    for layer in sorted(counts):
        own = [head for head in heads if head.layer == layer]
        chunks.extend(Chunk(layer, tuple(own[i : i + size]), size) for i in range(0, len(own), size))
    return chunks


def split_within(
    heads: Sequence[HeadId], limit: int, budget: int, compiled: Callable[[int], Any]
) -> tuple[list[Chunk], Any]:
    """Return the largest chunks of at most `limit` whose program's temporaries fit the budget, and the program.

    Args:
        heads: Heads of one head stack.
        limit: Largest chunk to consider.
        budget: Number of bytes.
        compiled: Function of a chunk size that returns the compiled program (`jax.stages.Compiled`).

    Raises:
        HeadjaxError: A single ablation needs more than the budget.
    """
    while True:
        chunks = chunks_of(heads, limit)
        size = chunks[0].size
        program = compiled(size)
        needed = temporary_bytes(program)
        if needed <= budget:
            return chunks, program
        if size == 1:
            raise HeadjaxError(
                f"budget: a single ablation needs {needed:,} bytes of temporaries, but may take {budget:,}"
            )
        limit = max(1, min(size - 1, size * budget // needed))


def temporary_bytes(compiled: Any) -> int:
    """Return the bytes that a program takes on a device besides arguments and results; 0 where JAX cannot tell."""
    analysis = compiled.memory_analysis()
    return 0 if analysis is None else int(analysis.temp_size_in_bytes)
