"""Walking over results that are still being computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def one_behind(items: Iterable[T]) -> Iterator[T]:
    """The items, each only once the next one has been asked for.

    Dispatch is asynchronous: whoever fetches an item from the device then leaves the device busy with the next.
    """
    previous: list[T] = []
    for item in items:
        yield from previous
        previous = [item]
    yield from previous
