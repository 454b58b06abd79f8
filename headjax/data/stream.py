"""Reading examples through Grain: shuffled and endless for training, once and exact for evaluation."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headjax.core.class_names import IGNORED
from headjax.core.errors import DataError, require
from headjax.core.programs import Share
from headjax.data.examples import Drawn, ExampleSource, Padded, by_length

if TYPE_CHECKING:
    import grain

WINDOW = 64  # number of batches whose examples are sorted by length together

LABELS = frozenset({"labels", "next_sentence_label", "start_positions", "end_positions"})
"""Names of batch entries that hold targets."""


class _SortedBatches:
    """The endless stream of examples with `bounds`: examples by position, each padded like its batch.

    The examples of `WINDOW` consecutive batches are drawn as without bounds, sorted by length and cut into batches,
    which are then shuffled. Every example is still read once per epoch, and the order is still a function of the seed
    alone.
    """

    def __init__(self, rows: Padded, order: Any, batch_size: int, seed: int) -> None:
        self.rows, self.order, self.batch_size, self.seed = rows, order, batch_size, seed
        self.ends = rows.ends(rows.bounds)
        self.window = functools.lru_cache(maxsize=4)(self._sorted)  # neighbouring examples are of the same window

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> Mapping[str, np.ndarray]:
        batch, place = divmod(index, self.batch_size)
        window, number = divmod(batch, WINDOW)
        examples = self.window(window)[number]
        end = self.ends[np.searchsorted(self.ends, self.rows.lengths[examples].max())]
        return self.rows.padded(int(examples[place]), int(end))

    def _sorted(self, number: int) -> np.ndarray:
        """Return the example numbers of one window, `[window, batch_size]`."""
        size = WINDOW * self.batch_size
        examples = np.asarray([self.order[number * size + i] for i in range(size)])
        ascending = examples[np.argsort(self.rows.lengths[examples], kind="stable")]
        return np.random.default_rng([self.seed, number]).permutation(ascending.reshape(WINDOW, self.batch_size))


def train_iterator(
    source: ExampleSource, batch_size: int, seed: int, *, share: Share = Share(), threads: int = 0
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
    divides = batch_size % share.count == 0
    require(divides, "batch_size", f"{batch_size} examples do not divide into {share.count} shares")
    order = grain.MapDataset.range(len(source)).seed(seed).shuffle().repeat()
    if isinstance(source, Padded) and source.bounds:
        stream = grain.MapDataset.source(_SortedBatches(source, order, batch_size, seed))
    elif isinstance(source, Drawn):
        stream = order.random_map(source.draw)
    else:
        stream = order.map(source.__getitem__)
    # Of N processes each reads every N-th part of a global batch.
    batches = stream.batch(batch_size // share.count, drop_remainder=True)[share.index :: share.count]
    return iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)))


def evaluation_batches(
    source: ExampleSource, batch_size: int, buckets: Sequence[int] = ()
) -> Iterator[dict[str, np.ndarray]]:
    """Yield every example once, in order, in batches of one shape, so that the model is compiled once.

    Every batch has `labels` (the `input_ids` if the source has none) and, if it has `input_ids`, an `attention_mask`.
    The last batch is filled up with rows of zeros whose `attention_mask` is 0 and whose labels are -100 (NaN if they
    are real numbers). These rows carry no loss, and sums over labels are exact.

        >>> examples = [{"input_ids": np.arange(4)}] * 3
        >>> [batch["input_ids"].shape for batch in headjax.evaluation_batches(examples, batch_size=2)]
        [(2, 4), (2, 4)]

    Args:
        source: any object with `__len__` and `__getitem__`.
        buckets: lengths to which batches are padded, besides the examples' own; see `by_length`.

    Raises:
        ConfigError: a batch size or bucket below one.
        DataError: an empty source.
    """
    _check_batch(source, batch_size)
    return itertools.chain.from_iterable(_evaluation_batches(part, batch_size) for part in by_length(source, buckets))


def _evaluation_batches(source: ExampleSource, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
    for start in range(0, len(source), batch_size):
        rows = []
        for index in range(start, min(start + batch_size, len(source))):
            row = {name: np.asarray(array) for name, array in source[index].items()}
            if "input_ids" in row:
                row.setdefault("attention_mask", np.ones_like(row["input_ids"]))
                row.setdefault("labels", row["input_ids"])
            rows.append(row)
        none = {name: np.nan if np.issubdtype(array.dtype, np.floating) else IGNORED for name, array in rows[0].items()}
        filling = {name: np.full_like(array, none[name] if name in LABELS else 0) for name, array in rows[0].items()}
        rows += [filling] * (batch_size - len(rows))
        yield {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def _check_batch(source: ExampleSource, batch_size: int) -> None:
    require(batch_size >= 1, "batch_size", f"must be at least 1, got {batch_size}")
    if len(source) == 0:
        raise DataError("source: it has no examples")
