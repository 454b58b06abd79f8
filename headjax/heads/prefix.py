"""Reuse the part of a forward pass before a change: record the residual stream once, resume from it, chunk by chunk.

Every model computes its layers by calling the stacks in `config.stacks()`, in that order. Hooks record them, replay
them or resume within them. The compiler then drops unread parts (embeddings, earlier stacks).
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
from headjax.models.hooks import Hooks, Reports
from headjax.models.layer import LayerCall, TransformerLayer
from headjax.models.stack import TransformerStack


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
    recording = _Recording()
    return config.apply(params, batch, options._replace(hooks=recording)), recording.recorded


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
    """
    earlier = list(config.stacks())
    earlier = earlier[: earlier.index(stack)]
    stream = jax.lax.dynamic_index_in_dim(recorded[stack].streams, start, keepdims=False)
    outputs = {name: recorded[name].output for name in earlier}
    return config.apply(params, batch, options._replace(hooks=_Resuming(outputs, stack, stream, start)))


class _Recording(Hooks):
    """Hooks that record the input of every layer and the output of every stack."""

    def __init__(self) -> None:
        self.recorded: dict[str, Recorded] = {}

    def stack(self, stack: TransformerStack, x: jax.Array, call: StackCall) -> tuple[jax.Array, list[Reports]]:
        output, reports = stack.forward(x, call)
        self.recorded[call.stack] = Recorded(jnp.stack([layer["entering"] for layer in reports]), output)
        return output, reports

    def layer(self, layer: TransformerLayer, x: jax.Array, call: LayerCall) -> tuple[jax.Array, Reports]:
        return layer(x, call)[0], {"entering": x}


class _Resuming(Hooks):
    """Hooks that replay the outputs of earlier stacks and enter one stack at a layer."""

    def __init__(self, outputs: Mapping[str, jax.Array], resumed: str, stream: jax.Array, start: jax.Array) -> None:
        self._outputs, self._resumed = outputs, resumed
        self._stream, self._start = stream, start

    def stack(self, stack: TransformerStack, x: jax.Array, call: StackCall) -> tuple[jax.Array, list[Reports]]:
        if call.stack in self._outputs:
            return self._outputs[call.stack], []
        if call.stack == self._resumed:
            return stack.forward(self._stream, call)
        return stack.forward(x, call._replace(hooks=None))

    def layer(self, layer: TransformerLayer, x: jax.Array, call: LayerCall) -> tuple[jax.Array, Reports]:
        def apply(x: jax.Array) -> jax.Array:
            return layer(x, call)[0]

        # The first layer reads the recorded stream itself and not the carry, which a vmap over gates turns into one
        # copy per gate: this way its projections and attention are computed once for all of them.
        branch = jnp.clip(call.number - self._start + 1, 0, 2)
        return jax.lax.switch(branch, [lambda x: x, lambda x: apply(self._stream), apply], x), {}


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
    """Return the largest chunks of at most `limit` whose program's temporaries fit the budget, and the program."""
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
    """Return the bytes that a program takes on a device beside arguments and results; 0 where JAX does not know."""
    analysis = compiled.memory_analysis()
    return 0 if analysis is None else int(analysis.temp_size_in_bytes)
