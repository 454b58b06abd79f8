"""Work that a device has ahead of the host: dispatch is asynchronous, so a loop would count what has only begun."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import jax
import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.core.progress import Update

T = TypeVar("T")


def one_behind(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, each only after the next one has been asked for, which keeps the device busy meanwhile."""
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


FETCH_EVERY = 20
"""Steps between two moments at which the host waits for the device."""


class Losses:
    """The losses of `total` steps, fetched together after the first step, every `FETCH_EVERY` and after the last."""

    def __init__(self, name: str, total: int) -> None:
        """Begin with none."""
        self._name, self._total = name, total
        self._waiting: list[jax.Array] = []
        self.fetched: list[float] = []

    def __len__(self) -> int:
        return len(self.fetched) + len(self._waiting)

    def add(self, loss: jax.Array) -> None:
        """Take the loss of the next step, a scalar on the device."""
        self._waiting.append(loss)
        if len(self) in (1, self._total) or len(self) % FETCH_EVERY == 0:
            self.fetch()

    def fetch(self) -> np.ndarray:
        """Wait for the losses of all steps so far and return them, `[steps]`."""
        for value in map(float, jax.device_get(self._waiting)):
            if not math.isfinite(value):
                raise HeadjaxError(f"{self._name}: the loss is {value} at step {len(self.fetched)}, counted from 0")
            self.fetched.append(value)
        self._waiting = []
        return np.asarray(self.fetched)

    def latest(self) -> Mapping[str, float]:
        """The last loss that the host knows, as a progress bar shows it."""
        return {"loss": self.fetched[-1]} if self.fetched else {}
