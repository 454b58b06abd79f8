"""Reading examples through Grain: shuffled and endless for training, once and exact for evaluation."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headjax.core.errors import DataError, require
from headjax.data.buckets import LengthBuckets
from headjax.data.ragged import RaggedRows
from headjax.data.task import RandomSource, Source
from headjax.models.outputs import IGNORED

if TYPE_CHECKING:
    import grain

LABELS = frozenset({"labels", "next_sentence_label", "start_positions", "end_positions"})
"""Batch entries that hold targets."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """The part of every global batch that one process reads: rows [index, index + 1) * batch_size / count.

    Processes whose devices hold the same rows (a model axis over hosts) take the same index.
    """

    index: int = 0
    count: int = 1


class TokenBlocks:
    """One long text as examples `{"input_ids": int32 [length]}`: consecutive blocks, the incomplete last one left out.

    Args:
        tokens: `[tokens]` integers.
        length: tokens of one example.

    Raises:
        DataError: not one whole block.
    """

    def __init__(self, tokens: np.ndarray, length: int) -> None:
        require(length >= 2, "length", f"must be at least 2 (a token and its successor), got {length}")
        if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
            raise DataError(f"tokens: expected integers [tokens], got {tokens.dtype} {list(tokens.shape)}")
        if len(tokens) < length:
            raise DataError(f"length: the text has {len(tokens)} tokens, less than one block of {length}")
        blocks = len(tokens) // length
        self.tokens = tokens[: blocks * length].astype(np.int32).reshape(blocks, length)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"input_ids": self.tokens[index]}


@dataclasses.dataclass(frozen=True)
class _ShardRows:
    """The endless example stream as one shard reads it: its rows of every global batch, batch after batch."""

    stream: Any  # examples by position, without an end
    batch_size: int
    shard: Shard

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> Mapping[str, np.ndarray]:
        rows = self.batch_size // self.shard.count
        batch, row = divmod(index, rows)
        return self.stream[batch * self.batch_size + self.shard.index * rows + row]


def train_iterator(
    source: Source, batch_size: int, seed: int, *, shard: Shard = Shard(), threads: int = 0
) -> grain.DatasetIterator:
    """Endless training batches, examples drawn without replacement in a new global order each epoch.

    The stream of examples is a function of (source, seed) alone. Global batch i holds examples i * batch_size and on,
    so it is the same for any number of processes, no example is left out at an epoch's end, and the state after i
    batches is the number i for every process: `iterator.get_state()` is JSON data, and `set_state` goes on exactly
    there, also with another number of processes or threads.

    Args:
        source: anything with `__len__` and `__getitem__`; read by index, so reading may be parallel. `LengthBuckets`
            change the order within some batches' reach and pad each batch by itself; a `RandomSource` draws its
            examples from the seed and the position in the stream.
        batch_size: examples of one global batch.
        seed: of the order, 0 <= seed < 2**32.
        shard: which rows this process reads.
        threads: how many read ahead; 0 reads when asked, which is fastest from memory.

    Returns:
        A Grain iterator over dicts of arrays `[batch_size / shard.count, ...]`.

    Raises:
        ConfigError: a batch that does not divide into the shards, a seed or a shard out of range.
        DataError: an empty source.
    """
    import grain

    _check_batch(source, batch_size)
    require(0 <= seed < 2**32, "seed", f"must be within [0, 2**32), got {seed}")
    require(threads >= 0, "threads", f"must not be negative, got {threads}")
    require(0 <= shard.index < shard.count, "shard", f"there is no shard {shard.index} of {shard.count}")
    divides = batch_size % shard.count == 0
    require(divides, "batch_size", f"{batch_size} examples do not divide into {shard.count} shards")
    stream: Any = grain.MapDataset.range(len(source)).seed(seed).shuffle().repeat()
    if isinstance(source, LengthBuckets):
        stream = source.stream(stream, batch_size, seed)
    elif isinstance(source, RandomSource):
        stream = stream.random_map(source.draw)
    else:
        stream = stream.map(source.__getitem__)
    rows = grain.MapDataset.source(_ShardRows(stream, batch_size, shard))
    batches = rows.batch(batch_size // shard.count, drop_remainder=True)
    return iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)))


def evaluation_batches(source: Source, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
    """Every example once, in order, in batches of one shape, so that the model is compiled once.

    Every batch has `labels` (the `input_ids` where the source names none) and, if it has `input_ids`, an
    `attention_mask`. The last batch is filled up with rows of zeros whose `attention_mask` is 0 and whose labels are
    -100 (NaN where they are real numbers): they carry no loss, and sums over labels are exact.

    Args:
        source: anything with `__len__` and `__getitem__`.
        batch_size: examples of one batch.

    Raises:
        ConfigError: a batch size below one.
        DataError: an empty source.
    """
    _check_batch(source, batch_size)
    return _evaluation_batches(source, batch_size)


def batches_by_length(rows: RaggedRows, batch_size: int, bounds: Sequence[int]) -> Iterator[dict[str, np.ndarray]]:
    """Every example once, short ones first and in batches that are padded to less; see `evaluation_batches`.

    Args:
        rows: the examples.
        batch_size: examples of one batch.
        bounds: lengths that batches are padded to, besides the rows' own; one compilation each.

    Raises:
        ConfigError: a batch size below one.
        DataError: no examples.
    """
    _check_batch(rows, batch_size)
    return itertools.chain.from_iterable(_evaluation_batches(part, batch_size) for part in rows.buckets(bounds))


def _evaluation_batches(source: Source, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
    for start in range(0, len(source), batch_size):
        rows = [_complete(source[index]) for index in range(start, min(start + batch_size, len(source)))]
        rows += [_padding(rows[0])] * (batch_size - len(rows))
        yield {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def _complete(example: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The example with the mask and labels that it implies."""
    row = {name: np.asarray(array) for name, array in example.items()}
    if "input_ids" in row:
        row.setdefault("attention_mask", np.ones_like(row["input_ids"]))
        row.setdefault("labels", row["input_ids"])
    return row


def _padding(row: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A row of the same shapes that counts nothing."""
    return {name: np.full_like(array, _no_label(array) if name in LABELS else 0) for name, array in row.items()}


def _no_label(like: np.ndarray) -> float:
    return np.nan if np.issubdtype(like.dtype, np.floating) else IGNORED


def _check_batch(source: Source, batch_size: int) -> None:
    require(batch_size >= 1, "batch_size", f"must be at least 1, got {batch_size}")
    if len(source) == 0:
        raise DataError("source: it has no examples")
