"""Losses of a training loop whose host does not wait for the device at every step."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import numpy as np

from headjax.core.errors import HeadjaxError

FETCH_EVERY = 20
"""Steps between two moments at which the host waits for the device."""


class Losses:
    """The losses of `total` steps, fetched together after the first step, every `FETCH_EVERY` and after the last.

    Between those moments the device has work ahead, and an error shows up to `FETCH_EVERY` steps late.
    """

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
