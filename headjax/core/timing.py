"""Timing that can be trusted: medians, spread, and candidates taken in turns within one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from headjax.core.progress import Progress, silent


class Timing(NamedTuple):
    """Seconds of repeated calls.

    Attributes:
        median: median seconds of a call.
        low, high: the first and third quartile.
        repeats: number of timed calls.
    """

    median: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        """Return the median and the quartiles of the seconds of each call."""
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median, low, high, len(seconds))


def time_in_turns(
    candidates: Mapping[str, Callable[[], Any]],
    *,
    repeats: int = 7,
    warmup: int = 1,
    settle: int = 1,
    progress: Progress = silent,
) -> dict[str, Timing]:
    """Time every candidate `repeats` times, one after another in turns, so that all see the same machine.

    A turn is `settle` calls that do not count and one that does: training takes step after step, and memory that the
    candidate before has given back to the system is slow to get again where a virtual machine's host has taken it.

    Args:
        candidates: functions by name; what they return is waited for.
        repeats: timed calls of each, at least 2.
        warmup: calls of each before any is timed (compilation).
        settle: calls before the timed one of each turn.
        progress: shows the turns.
    """
    for call in candidates.values():
        _call(call, warmup)
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    with progress("timing", repeats, "turn") as bar:
        for repeat in range(repeats):
            for name, call in candidates.items():
                _call(call, settle)
                start = time.perf_counter()
                _call(call, 1)
                seconds[name].append(time.perf_counter() - start)
            bar(repeat + 1, {})
    return {name: Timing.of(times) for name, times in seconds.items()}


def _call(call: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        jax.block_until_ready(call())
