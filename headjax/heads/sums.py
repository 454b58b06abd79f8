"""Sums over batches, fetched from the device while it computes the next batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np

from headjax.core.errors import DataError
from headjax.mesh.distributed import fetch

T = TypeVar("T")


def one_behind(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, each only after the next one has been asked for.

    Dispatch is asynchronous, so fetching an item leaves the device busy with the next one.
    """
    previous: list[T] = []
    for item in items:
        yield from previous
        previous = [item]
    yield from previous


def sum_over(
    parts: Iterable[Any], check: Callable[[int, Any], None] | None = None, empty: str = "there is no example"
) -> Any:
    """The sum of trees of arrays that live on devices, in float64 on the host.

    Args:
        parts: one tree a batch, all of one structure.
        check: called with a batch's number and its fetched tree, to refuse values or to show progress.
        empty: the end of the error without batches.

    Raises:
        DataError: there are no batches.
    """
    total: Any = None
    for number, part in enumerate(one_behind(parts)):
        fetched = jax.tree.map(lambda array: np.asarray(array, np.float64), fetch(part))
        if check is not None:
            check(number, fetched)
        total = fetched if total is None else jax.tree.map(np.add, total, fetched)
    if total is None:
        raise DataError(f"batches: {empty}")
    return total
