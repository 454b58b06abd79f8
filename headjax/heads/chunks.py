"""Splitting a sweep over heads into equal chunks, each of one layer, that fit a memory budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from headjax.core.errors import HeadjaxError
from headjax.heads.head_id import HeadId


class Chunk(NamedTuple):
    """Heads of one layer that are ablated together.

    Attributes:
        layer: their layer.
        heads: the heads, at most `size` of them.
        size: size of every chunk of the sweep; what is missing is filled up.
    """

    layer: int
    heads: tuple[HeadId, ...]
    size: int

    @property
    def padded(self) -> tuple[HeadId, ...]:
        """Exactly `size` heads, the last one repeated."""
        return self.heads + self.heads[-1:] * (self.size - len(self.heads))


def split(heads: Sequence[HeadId], limit: int) -> list[Chunk]:
    """The heads of one head stack in chunks of at most `limit`.

    All chunks have the same size, so that they share a program: the size that takes the least work, fillings included.
    A chunk counts as one ablation more than it holds, for what is done once per chunk.
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
    """The largest chunks of at most `limit` whose program keeps its temporaries within the budget, and the program.

    Args:
        heads: heads of one head stack.
        limit: largest chunk to consider.
        budget: bytes.
        compiled: from a chunk size to the compiled program (`jax.stages.Compiled`).

    Raises:
        HeadjaxError: a single ablation needs more than the budget.
    """
    while True:
        chunks = split(heads, limit)
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
    """Bytes a compiled program takes on a device besides its arguments and results; 0 where JAX cannot tell."""
    analysis = compiled.memory_analysis()
    return 0 if analysis is None else int(analysis.temp_size_in_bytes)
