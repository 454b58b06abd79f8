"""Ranges of the integers in a batch, checked on the host: on a device, an index out of range reads nonsense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from headjax.core.errors import DataError


class Range(NamedTuple):
    """The integers `low <= i < high`, by a plural noun; `ignored` is allowed too, as the label without a loss."""

    high: int | None  # None is no limit
    what: str
    low: int = 0
    ignored: int | None = None


def check_ranges(ranges: Mapping[str, Range], batch: Mapping[str, Any]) -> None:
    """Check a batch's integers against their ranges; arrays on a device, and real numbers, are left alone."""
    for name, (high, what, low, ignored) in ranges.items():
        array = np.asarray(batch[name] if isinstance(batch.get(name), np.ndarray | list | tuple) else ())
        if high is None or array.size == 0 or not np.issubdtype(array.dtype, np.integer):
            continue
        if array.min() >= low and array.max() < high:
            continue
        outside = ((array < low) | (array >= high)) & (array != (low if ignored is None else ignored))
        if outside.any():
            place = [int(axis) for axis in np.argwhere(outside)[0]]
            also = f", or {ignored} for none" if ignored is not None else ""
            has = f"the model has {high} {what} ({low} to {high - 1}{also})"
            raise DataError(f"{name}: {int(array[tuple(place)])} at {place}, but {has}")
