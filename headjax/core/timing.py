"""Timing that can be trusted: medians, spread, and candidates taken in turns within one run."""

from __future__ import annotations

import functools
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from headjax.core.progress import Progress, silent


class Timing(NamedTuple):
    """Seconds of repeated calls."""

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
    """Return the timing of every candidate, called `repeats` times in turns; the arguments are `seconds_in_turns`'s."""
    seconds = seconds_in_turns(candidates, repeats=repeats, warmup=warmup, settle=settle, progress=progress)
    return {name: Timing.of(times) for name, times in seconds.items()}


def seconds_in_turns(
    candidates: Mapping[str, Callable[[], Any]],
    *,
    repeats: int = 7,
    warmup: int = 1,
    settle: int = 1,
    before: Mapping[str, Callable[[], Any]] | None = None,
    progress: Progress = silent,
) -> dict[str, list[float]]:
    """Time every candidate `repeats` times in turns, each of `settle` calls that do not count and one that does."""
    needed = before or {}
    seconds: dict[str, list[float]] = {name: [] for name in candidates}

    def timed(name: str) -> float:
        jax.block_until_ready(needed[name]() if name in needed else None)
        start = time.perf_counter()
        jax.block_until_ready(candidates[name]())
        return time.perf_counter() - start

    for name in candidates:
        for _ in range(warmup):
            timed(name)
    with progress("timing", repeats, "turn") as bar:
        for repeat in range(repeats):
            for name in candidates:
                for _ in range(settle):
                    timed(name)
                seconds[name].append(timed(name))
            bar(repeat + 1, {})
    return seconds


@functools.cache
def matrix_rate(size: int = 1024) -> float:
    """Return the floating-point operations a second of a float32 matrix product, the fastest of three."""
    matrix, product = jnp.ones((size, size), jnp.float32), jax.jit(jnp.matmul)
    found = seconds_in_turns({"product": lambda: product(matrix, matrix)}, repeats=3)
    return 2.0 * size**3 / min(found["product"])


def processor() -> str:
    """Return the name of JAX's device, for a CPU with the number of cores that this process may use."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        return str(device.device_kind)
    cores = usable_cores()
    return f"{processor_model()}, {cores} core{'s' * (cores != 1)}"


def processor_model() -> str:
    """Return the name of the processor, or of its architecture where the system does not tell more."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
