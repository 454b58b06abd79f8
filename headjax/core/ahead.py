"""Work that a device has ahead of the host: dispatch is asynchronous, so a loop would count what has only begun."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import jax

from headjax.core.progress import Update

T = TypeVar("T")


def one_behind(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, each only after the next one has been asked for.

    Fetching an item leaves the device busy with the next one.
    """
    previous: list[T] = []
    for item in items:
        yield from previous
        previous = [item]
    yield from previous


def finished(items: Iterable[T], progress: Update | None, before: int = 0) -> Iterator[T]:
    """Yield arrays that a device computes, each once it is there, and count them, from `before` on."""
    for number, item in enumerate(one_behind(items), start=before + 1):
        jax.block_until_ready(item)
        if progress is not None:
            progress(number, {})
        yield item
