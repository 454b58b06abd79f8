"""Training batches of examples of about the same length, so that little of them is padding."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from headjax.core.errors import require
from headjax.data.ragged import bucket_ends

WINDOW = 64
"""Batches whose examples are sorted by length among one another."""


class Indices(Protocol):
    """An endless stream of example numbers, read by position."""

    def __getitem__(self, index: int) -> int: ...


class PaddedRows(Protocol):
    """Examples of different lengths, each padded as asked for (`RaggedRows`)."""

    @property
    def lengths(self) -> np.ndarray:
        """`[examples]` their own lengths."""

    @property
    def length(self) -> int:
        """What they are padded to unless asked otherwise."""

    def __len__(self) -> int: ...

    def padded(self, index: int, length: int) -> dict[str, np.ndarray]:
        """An example padded to a length."""


@dataclasses.dataclass(frozen=True)
class LengthBuckets:
    """Examples of different lengths for `train_iterator`, which then pads each batch to one of a few lengths.

    The examples of `window` batches in a row are drawn together as without buckets, sorted by length, cut into batches,
    and the batches put in random order: every example is still read once an epoch, and what is read when is still a
    function of the seed and the position alone.

    Attributes:
        rows: the examples.
        bounds: lengths that batches are padded to, besides the rows' own; one compilation each.
        window: number of batches.
    """

    rows: PaddedRows
    bounds: tuple[int, ...]
    window: int = WINDOW

    def __post_init__(self) -> None:
        require(all(bound >= 1 for bound in self.bounds), "buckets", f"must be positive, got {list(self.bounds)}")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return self.rows.padded(index, self.rows.length)

    def stream(self, indices: Indices, batch_size: int, seed: int) -> BucketStream:
        """The endless stream of examples, batch after batch.

        Args:
            indices: the stream of example numbers without buckets.
            batch_size: examples of one batch.
            seed: of the order of the batches in a window.
        """
        return BucketStream(self, indices, batch_size, seed)


class BucketStream:
    """What `LengthBuckets.stream` returns: examples by position, each padded like its batch."""

    def __init__(self, buckets: LengthBuckets, indices: Indices, batch_size: int, seed: int) -> None:
        rows = buckets.rows
        self._rows, self._ends = rows, np.asarray(bucket_ends(buckets.bounds, rows.length))
        self._indices, self._batch_size, self._seed, self._window = indices, batch_size, seed, buckets.window
        self._cached = functools.lru_cache(maxsize=4)(self._batches)

    def __getitem__(self, index: int) -> Mapping[str, np.ndarray]:
        batch, row = divmod(index, self._batch_size)
        window, place = divmod(batch, self._window)
        examples = self._cached(window)[place]
        end = self._ends[np.searchsorted(self._ends, self._rows.lengths[examples].max())]
        return self._rows.padded(int(examples[row]), int(end))

    def _batches(self, window: int) -> np.ndarray:
        """`[window, batch_size]` example numbers of one window."""
        size = self._window * self._batch_size
        examples = np.asarray([self._indices[window * size + i] for i in range(size)])
        examples = examples[np.argsort(self._rows.lengths[examples], kind="stable")]
        order = np.random.default_rng([self._seed, window]).permutation(self._window)
        return examples.reshape(self._window, self._batch_size)[order]
