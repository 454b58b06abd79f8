"""Slopes of cost curves: the power of a factor with which a cost grows, measured and by the count of operations."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from headjax.core.timing import Timing

TOLERANCE = 0.15
"""Difference of a measured slope from the theory's from which on an operation departs from theory: a factor of 1.23 in
cost where the factor grows fourfold."""


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return a of y = c x^a by least squares on log x and log y."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


class Spread(NamedTuple):
    """Slopes of repeated measurements: their median, and the first and third quartile."""

    median: float
    low: float
    high: float


class CostCurve(NamedTuple):
    """Costs of an operation as one factor grows and all others stay.

    Attributes:
        values: values of the factor, from the smallest to the largest.
        seconds: by value, the seconds of each turn; every turn has one call at each value.
        flops: by value, the operations that the program is counted to take.
        memory: by value, bytes of the compiled program: arguments and temporaries.
    """

    values: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    flops: tuple[float, ...]
    memory: tuple[int, ...]

    @property
    def measured(self) -> Spread:
        """Slopes of the time, one of each turn."""
        found = [slope(self.values, turn) for turn in zip(*self.seconds, strict=True)]
        return Spread(*Timing.of(found)[:3])

    @property
    def predicted(self) -> float:
        """Slope of the operations over the same values."""
        return slope(self.values, self.flops)

    @property
    def memory_slope(self) -> float:
        """Slope of the memory."""
        return slope(self.values, self.memory)

    @property
    def medians(self) -> list[float]:
        """Median seconds at each value."""
        return [statistics.median(turns) for turns in self.seconds]

    @property
    def departs(self) -> bool:
        """Whether the time grows otherwise than the operations, by more than `TOLERANCE` and more than its spread."""
        measured, predicted = self.measured, self.predicted
        outside = not measured.low <= predicted <= measured.high
        return outside and abs(measured.median - predicted) > TOLERANCE

    def to_json(self) -> dict[str, Any]:
        """Return the curve and its slopes as JSON data."""
        return self._asdict() | {
            "slope": self.measured._asdict(),
            "predicted_slope": self.predicted,
            "memory_slope": self.memory_slope,
            "departs": self.departs,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CostCurve:
        """Return the curve of `to_json`'s data."""
        seconds = tuple(tuple(turns) for turns in data["seconds"])
        return cls(tuple(data["values"]), seconds, tuple(data["flops"]), tuple(data["memory"]))
