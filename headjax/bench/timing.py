"""Timing that can be trusted: medians, spread, and candidates taken in turns within one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax


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


def time_in_turns(
    candidates: Mapping[str, Callable[[], Any]], *, repeats: int = 7, warmup: int = 1
) -> dict[str, Timing]:
    """Times every candidate `repeats` times, one after another in turns, so that all see the same machine.

    Args:
        candidates: functions by name; what they return is waited for.
        repeats: timed calls of each, at least 2.
        warmup: calls of each before any is timed (compilation).
    """
    for call in candidates.values():
        for _ in range(warmup):
            jax.block_until_ready(call())
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, call in candidates.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            seconds[name].append(time.perf_counter() - start)
    return {name: summarize(times) for name, times in seconds.items()}


def summarize(seconds: list[float]) -> Timing:
    """Median and quartiles."""
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Timing(median, low, high, len(seconds))
