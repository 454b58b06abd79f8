"""Reading examples through Grain: shuffled and endless for training, once and exact for evaluation."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from headjax.core.errors import DataError, require
from headjax.data.examples import Padded, RandomSource, Source, bucket_ends
from headjax.mesh.distributed import BatchShare
from headjax.models.outputs import IGNORED

if TYPE_CHECKING:
    import grain

WINDOW = 64
"""Number of batches whose examples are sorted by length together."""

LABELS = frozenset({"labels", "next_sentence_label", "start_positions", "end_positions"})
"""Names of batch entries that hold targets."""


class Indices(Protocol):
    """An endless stream of example numbers, read by position."""

    def __getitem__(self, index: int) -> int: ...


@dataclasses.dataclass(frozen=True)
class LengthBuckets:
    """Examples of different lengths for `train_iterator`, which then pads each batch to one of a few lengths.

    The examples of `window` consecutive batches are drawn as without buckets, sorted by length and cut into batches,
    which are then shuffled. Every example is still read once per epoch, and the order is still a function of the seed
    alone.

    Attributes:
        rows: the examples.
        bounds: lengths to which batches are padded, besides the examples' own; one compilation each.
        window: number of batches that are sorted together.
    """

    rows: Padded
    bounds: tuple[int, ...]
    window: int = WINDOW

    def __post_init__(self) -> None:
        require(all(bound >= 1 for bound in self.bounds), "buckets", f"must be positive, got {list(self.bounds)}")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return self.rows.padded(index, self.rows.length)

    def stream(self, indices: Indices, batch_size: int, seed: int, ranges: int = 1) -> BucketStream:
        """Return the endless stream of examples, batch after batch.

        Args:
            indices: the stream of example numbers without buckets.
            batch_size: number of examples of a batch.
            seed: seed of the order of the batches in a window.
            ranges: parts of a batch, of which each keeps its own examples.
        """
        return BucketStream(self, indices, batch_size, seed, ranges)


class BucketStream:
    """The stream of `LengthBuckets`: examples by position, each padded like its batch."""

    def __init__(self, buckets: LengthBuckets, indices: Indices, batch_size: int, seed: int, ranges: int) -> None:
        rows = buckets.rows
        self._rows, self._ends = rows, np.asarray(bucket_ends(buckets.bounds, rows.length))
        self._indices, self._batch_size, self._seed, self._window = indices, batch_size, seed, buckets.window
        self._ranges = ranges
        self._cached = functools.lru_cache(maxsize=4)(self._batches)

    def __getitem__(self, index: int) -> Mapping[str, np.ndarray]:
        batch, row = divmod(index, self._batch_size)
        window, place = divmod(batch, self._window)
        examples = self._cached(window)[place]
        end = self._ends[np.searchsorted(self._ends, self._rows.lengths[examples].max())]
        return self._rows.padded(int(examples[row]), int(end))

    def _batches(self, window: int) -> np.ndarray:
        """Return the example numbers of one window, `[window, batch_size]`."""
        size = self._window * self._batch_size
        examples = np.asarray([self._indices[window * size + i] for i in range(size)])
        examples = examples.reshape(self._window, self._ranges, -1).swapaxes(0, 1).reshape(self._ranges, -1)
        ascending = np.argsort(self._rows.lengths[examples], axis=1, kind="stable")
        examples = np.take_along_axis(examples, ascending, 1).reshape(self._ranges, self._window, -1).swapaxes(0, 1)
        order = np.random.default_rng([self._seed, window]).permutation(self._window)
        return examples.reshape(self._window, self._batch_size)[order]


class RangedIndices:
    """An endless stream of example numbers in which each part of a batch has examples of one range.

    The examples are divided into consecutive ranges, as many as a batch has parts, and rows
    [r, r + 1) * batch_size / ranges of every batch take those of range r. A range has as many examples as its rows take
    in an epoch, so that every epoch has every example once; the borders therefore move by up to a batch between epochs.

    Args:
        count: number of examples.
        batch_size: number of examples of a batch.
        ranges: number of ranges, a divisor of the batch size.
        seed: seed of the order within each range and epoch.
    """

    def __init__(self, count: int, batch_size: int, ranges: int, seed: int) -> None:
        self._count, self._batch_size, self._ranges, self._seed = count, batch_size, ranges, seed
        self._rows = batch_size // ranges
        self._starts = functools.lru_cache(maxsize=4)(self._starts_of)
        self._order = functools.lru_cache(maxsize=4 * ranges)(self._order_of)

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> int:
        epoch = index // self._count
        number = index % self._batch_size // self._rows
        taken = self._taken(index, number) - self._taken(epoch * self._count, number)
        return self._starts(epoch)[number] + int(self._order(epoch, number)[taken])

    def _taken(self, index: int, number: int) -> int:
        """Return the number of positions below an index at which a range is read."""
        batches, rest = divmod(index, self._batch_size)
        return batches * self._rows + min(max(rest - self._rows * number, 0), self._rows)

    def _starts_of(self, epoch: int) -> list[int]:
        """Return the first example of each range in an epoch, and at the end the number of examples."""
        begin, end = epoch * self._count, (epoch + 1) * self._count
        sizes = (self._taken(end, number) - self._taken(begin, number) for number in range(self._ranges))
        return [0, *itertools.accumulate(sizes)]

    def _order_of(self, epoch: int, number: int) -> Indices:
        """Return the order of the examples of a range in an epoch, counted from its start."""
        import grain

        starts, sequence = self._starts(epoch), np.random.SeedSequence([self._seed, epoch, number])
        order: Indices = (
            grain.MapDataset.range(starts[number + 1] - starts[number])
            .seed(int(sequence.generate_state(1)[0]))
            .shuffle()
        )
        return order


@dataclasses.dataclass(frozen=True)
class _ShareRows:
    """The endless stream of examples of one process: its rows of every global batch, batch after batch."""

    stream: Any  # examples by position, without an end
    batch_size: int
    share: BatchShare

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> Mapping[str, np.ndarray]:
        rows = self.batch_size // self.share.count
        batch, row = divmod(index, rows)
        return self.stream[batch * self.batch_size + self.share.index * rows + row]


def train_iterator(
    source: Source, batch_size: int, seed: int, *, share: BatchShare = BatchShare(), threads: int = 0, ranges: int = 0
) -> grain.DatasetIterator:
    """Return endless training batches; every epoch has all examples, without replacement, in a new global order.

    The stream of examples is a function of (source, seed) alone; with ranges, of their number and the batch size, too.
    Global batch i holds the examples from number i * batch_size on, so it is the same for any number of processes, no
    example is left out at the end of an epoch, and the state after i batches is the number i for every process:
    `iterator.get_state()` is JSON data, and `set_state` continues exactly there, also with another number of processes
    or threads.

    Args:
        source: any object with `__len__` and `__getitem__`, read by index, maybe by several threads. `LengthBuckets`
            sort the examples of neighbouring batches by length and pad each batch by itself; a `RandomSource` draws
            its examples from the seed and the position in the stream.
        batch_size: number of examples of a global batch.
        seed: seed of the order, 0 <= seed < 2**32.
        share: the rows that this process reads.
        threads: number of threads that read ahead; 0 reads on demand, which is fastest from memory.
        ranges: number of consecutive ranges of examples that are shuffled each by itself, see `RangedIndices`. A
            process reads the examples of its ranges alone. 0 shuffles all together, and each process reads among all.

    Returns:
        A Grain iterator over dicts of arrays `[batch_size / share.count, ...]`.

    Raises:
        ConfigError: a batch that does not divide into the shares or ranges, ranges that do not divide among the shares,
            a seed or a share out of range.
        DataError: an empty source.
    """
    import grain

    _check_batch(source, batch_size)
    require(0 <= seed < 2**32, "seed", f"must be within [0, 2**32), got {seed}")
    require(threads >= 0, "threads", f"must not be negative, got {threads}")
    require(0 <= share.index < share.count, "share", f"there is no share {share.index} of {share.count}")
    divides = batch_size % share.count == 0
    require(divides, "batch_size", f"{batch_size} examples do not divide into {share.count} shares")
    stream: Any
    if ranges:
        require(batch_size % ranges == 0, "ranges", f"a batch of {batch_size} does not divide into {ranges} ranges")
        require(ranges % share.count == 0, "ranges", f"{ranges} do not divide among {share.count} processes")
        stream = grain.MapDataset.source(RangedIndices(len(source), batch_size, ranges, seed)).seed(seed)
    else:
        stream = grain.MapDataset.range(len(source)).seed(seed).shuffle().repeat()
    if isinstance(source, LengthBuckets):
        stream = source.stream(stream, batch_size, seed, ranges or 1)
    elif isinstance(source, RandomSource):
        stream = stream.random_map(source.draw)
    else:
        stream = stream.map(source.__getitem__)
    rows = grain.MapDataset.source(_ShareRows(stream, batch_size, share))
    batches = rows.batch(batch_size // share.count, drop_remainder=True)
    return iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)))


def evaluation_batches(source: Source, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield every example once, in order, in batches of one shape, so that the model is compiled once.

    Every batch has `labels` (the `input_ids` if the source has none) and, if it has `input_ids`, an `attention_mask`.
    The last batch is filled up with rows of zeros whose `attention_mask` is 0 and whose labels are -100 (NaN if they
    are real numbers): these rows carry no loss, and sums over labels are exact.

    Args:
        source: any object with `__len__` and `__getitem__`.
        batch_size: number of examples of a batch.

    Raises:
        ConfigError: a batch size below one.
        DataError: an empty source.
    """
    _check_batch(source, batch_size)
    return _evaluation_batches(source, batch_size)


def batches_by_length(rows: Padded, batch_size: int, bounds: Sequence[int]) -> Iterator[dict[str, np.ndarray]]:
    """Yield every example once, short ones first, in batches with less padding; see `evaluation_batches`.

    Args:
        rows: the examples.
        batch_size: number of examples of a batch.
        bounds: lengths to which batches are padded, besides the examples' own; one compilation each.

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
    """Return an example with its implied mask and labels."""
    row = {name: np.asarray(array) for name, array in example.items()}
    if "input_ids" in row:
        row.setdefault("attention_mask", np.ones_like(row["input_ids"]))
        row.setdefault("labels", row["input_ids"])
    return row


def _padding(row: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a row of the same shapes without targets."""
    return {name: np.full_like(array, _no_label(array) if name in LABELS else 0) for name, array in row.items()}


def _no_label(like: np.ndarray) -> float:
    return np.nan if np.issubdtype(like.dtype, np.floating) else IGNORED


def _check_batch(source: Source, batch_size: int) -> None:
    require(batch_size >= 1, "batch_size", f"must be at least 1, got {batch_size}")
    if len(source) == 0:
        raise DataError("source: it has no examples")
