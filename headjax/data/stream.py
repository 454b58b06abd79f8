"""Reading examples through Grain: shuffled and endless for training, once and exact for evaluation."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headjax.core.class_names import IGNORED
from headjax.core.errors import DataError, require
from headjax.core.share import Share
from headjax.data.examples import Padded, RandomSource, Source, bucket_ends

if TYPE_CHECKING:
    import grain

WINDOW = 64
"""Number of batches whose examples are sorted by length together."""

LABELS = frozenset({"labels", "next_sentence_label", "start_positions", "end_positions"})
"""Names of batch entries that hold targets."""


@dataclasses.dataclass(frozen=True)
class LengthBuckets:
    """Examples of different lengths for `train_iterator`, which then pads each batch to one of a few lengths.

    The examples of `window` consecutive batches are drawn as without buckets, sorted by length and cut into batches,
    which are then shuffled. Every example is still read once per epoch, and the order is still a function of the seed
    alone.
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


@dataclasses.dataclass(frozen=True)
class _SortedBatches:
    """The endless stream of `LengthBuckets`: examples by position, each padded like its batch."""

    buckets: LengthBuckets
    order: Any
    batch_size: int
    seed: int

    def __getitem__(self, index: int) -> Mapping[str, np.ndarray]:
        rows = self.buckets.rows
        batch, place = divmod(index, self.batch_size)
        examples = self._window(batch // self.buckets.window)[batch % self.buckets.window]
        end = next(end for end in self._ends if end >= rows.lengths[examples].max())
        return rows.padded(int(examples[place]), end)

    @functools.cached_property
    def _ends(self) -> list[int]:
        return bucket_ends(self.buckets.bounds, self.buckets.rows.length)

    @functools.cached_property
    def _window(self) -> Callable[[int], np.ndarray]:
        return functools.lru_cache(maxsize=4)(self._sorted)  # neighbouring examples are of the same window

    def _sorted(self, number: int) -> np.ndarray:
        """Return the example numbers of one window, `[window, batch_size]`."""
        size = self.buckets.window * self.batch_size
        examples = np.asarray([self.order[number * size + i] for i in range(size)])
        ascending = examples[np.argsort(self.buckets.rows.lengths[examples], kind="stable")]
        order = np.random.default_rng([self.seed, number]).permutation(self.buckets.window)
        return ascending.reshape(self.buckets.window, self.batch_size)[order]


@dataclasses.dataclass(frozen=True)
class _ShareRows:
    """The endless stream of examples of one process: its rows of every global batch, batch after batch."""

    stream: Any  # examples by position, without an end
    batch_size: int
    share: Share

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> Mapping[str, np.ndarray]:
        rows = self.batch_size // self.share.count
        batch, row = divmod(index, rows)
        return self.stream[batch * self.batch_size + self.share.index * rows + row]


def train_iterator(
    source: Source, batch_size: int, seed: int, *, share: Share = Share(), threads: int = 0
) -> grain.DatasetIterator:
    """Return endless training batches; every epoch has all examples, without replacement, in a new global order.

    The stream of examples is a function of (source, seed) alone, and global batch i holds the examples from number i *
    batch_size on. So the stream is the same for any number of processes, and the end of an epoch skips no example. The
    state after i batches is the number i for every process. `iterator.get_state()` is JSON data, and `set_state`
    continues exactly there, also with another number of processes or threads.
    """
    import grain

    _check_batch(source, batch_size)
    require(0 <= seed < 2**32, "seed", f"must be within [0, 2**32), got {seed}")
    require(threads >= 0, "threads", f"must not be negative, got {threads}")
    require(0 <= share.index < share.count, "share", f"there is no share {share.index} of {share.count}")
    divides = batch_size % share.count == 0
    require(divides, "batch_size", f"{batch_size} examples do not divide into {share.count} shares")
    order = grain.MapDataset.range(len(source)).seed(seed).shuffle().repeat()
    stream: Any
    if isinstance(source, LengthBuckets):
        stream = _SortedBatches(source, order, batch_size, seed)
    elif isinstance(source, RandomSource):
        stream = order.random_map(source.draw)
    else:
        stream = order.map(source.__getitem__)
    rows = grain.MapDataset.source(_ShareRows(stream, batch_size, share))
    batches = rows.batch(batch_size // share.count, drop_remainder=True)
    return iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)))


def evaluation_batches(source: Source, batch_size: int, buckets: Sequence[int] = ()) -> Iterator[dict[str, np.ndarray]]:
    """Yield every example once, in order, in batches of one shape, so that the model is compiled once.

    Every batch has `labels` (the `input_ids` if the source has none) and, if it has `input_ids`, an `attention_mask`.
    The last batch is filled up with rows of zeros whose `attention_mask` is 0 and whose labels are -100 (NaN if they
    are real numbers). These rows carry no loss, and sums over labels are exact.

        >>> examples = [{"input_ids": np.arange(4)}] * 3
        >>> [batch["input_ids"].shape for batch in headjax.evaluation_batches(examples, batch_size=2)]
        [(2, 4), (2, 4)]

    Args:
        source: any object with `__len__` and `__getitem__`.
        batch_size: number of examples of a batch.
        buckets: lengths to which batches are padded, besides the examples' own; see `by_length`.

    Raises:
        ConfigError: a batch size or bucket below one.
        DataError: an empty source.
    """
    _check_batch(source, batch_size)
    parts = by_length(source, buckets)
    return itertools.chain.from_iterable(_evaluation_batches(part, batch_size) for part in parts)


def by_length(source: Source, buckets: Sequence[int]) -> Sequence[Source]:
    """Return examples of different lengths in groups, short ones first; one compilation each.

    Other examples are one group.
    """
    if not buckets or not isinstance(source, Padded):
        return [source]
    require(all(bound >= 1 for bound in buckets), "buckets", f"must be positive lengths, got {list(buckets)}")
    return source.buckets(buckets)


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
