"""Deferred arrays that count how many bytes of them are in memory at the same time."""

from __future__ import annotations

import weakref
from typing import Any

import jax
import numpy as np

from headjax.core.deferred import Deferred
from headjax.models.model import Model


class Alive:
    """Makes arrays of which it counts the bytes in memory, `now` and at `most`, until nothing refers to them."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def array(self, value: Any) -> Deferred:
        """Return a deferred array of these numbers."""

        def make() -> np.ndarray:
            made = np.array(value)
            self.now += made.nbytes
            self.most = max(self.most, self.now)
            weakref.finalize(made, self._gone, made.nbytes)
            return made

        return Deferred(value.shape, np.dtype(value.dtype), make)

    def model(self, model: Model) -> Model:
        """Return a model with all its arrays deferred."""
        return model.replace(params=jax.tree.map(self.array, model.params))

    def _gone(self, size: int) -> None:
        self.now -= size
