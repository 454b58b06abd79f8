"""Ranges of the integers in a batch, checked on the host: on a device, an index out of range reads nonsense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from headjax.core.errors import DataError


class Range(NamedTuple):
    """The integers `low <= i < high`, by a plural noun; `ignored` is allowed too, as the label without a loss."""

    high: int
    what: str
    low: int = 0
    ignored: int | None = None

    def check(self, name: str, array: np.ndarray) -> None:
        """Raise `DataError` naming the first integer of a batch's array that is out of range."""
        if array.size == 0 or (array.min() >= self.low and array.max() < self.high):
            return
        outside = (array < self.low) | (array >= self.high)
        if self.ignored is not None:
            outside &= array != self.ignored
        if not outside.any():
            return
        place = [int(axis) for axis in np.argwhere(outside)[0]]
        also = f", or {self.ignored} for none" if self.ignored is not None else ""
        raise DataError(
            f"{name}: {int(array[tuple(place)])} at {place}, but the model has {self.high} {self.what} "
            f"({self.low} to {self.high - 1}{also})"
        )


def check_ranges(ranges: Mapping[str, Range], batch: Mapping[str, Any]) -> None:
    """Check a batch's integers against their ranges; arrays on a device, and real numbers, are left alone."""
    for name, wanted in ranges.items():
        if isinstance(batch.get(name), np.ndarray | list | tuple):
            array = np.asarray(batch[name])
            if np.issubdtype(array.dtype, np.integer):
                wanted.check(name, array)
