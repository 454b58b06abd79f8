"""Timing that can be trusted, and work that a device has ahead of the host.

Timings are medians with their spread, of candidates taken in turns within one run. Dispatch is asynchronous, so that a
loop would count what has only begun.
"""

from __future__ import annotations

import functools
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.core.progress import Progress, Update, silent


class Timing(NamedTuple):
    """Seconds of repeated calls."""

    median: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median, low, high, len(seconds))


def time_in_turns(candidates: Mapping[str, Callable[[], Any]], **options: Any) -> dict[str, Timing]:
    """Return the timing of every candidate; the arguments are those of `seconds_in_turns`."""
    return {name: Timing.of(seconds) for name, seconds in seconds_in_turns(candidates, **options).items()}


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


def seconds_of(call: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds of a call by the clock, and its processor time; an accelerator's are equal."""
    start, used = time.perf_counter(), time.process_time()
    jax.block_until_ready(call())
    seconds, used = time.perf_counter() - start, time.process_time() - used
    return seconds, used if jax.default_backend() == "cpu" else seconds


@functools.cache
def matrix_rate() -> float:
    """Return the floating-point operations a second of a float32 matrix product, the fastest of three."""
    matrix, product = jax.device_put(np.ones((1024, 1024), np.float32)), jax.jit(jnp.matmul)
    times = seconds_in_turns({"product": lambda: product(matrix, matrix)}, repeats=3)
    return 2.0 * 1024**3 / min(times["product"])


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


T = TypeVar("T")


def one_behind(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, each only after the next one has been asked for, which keeps the device busy meanwhile."""
    previous: list[T] = []
    for item in items:
        yield from previous
        previous = [item]
    yield from previous


def finished(items: Iterable[T], progress: Update | None) -> Iterator[T]:
    """Yield arrays that a device computes, each once it is there, and count them."""
    for number, item in enumerate(one_behind(items), start=1):
        jax.block_until_ready(item)
        if progress is not None:
            progress(number, {})
        yield item


FETCH_EVERY = 20
"""Steps between two moments at which the host waits for the device."""


class Losses:
    """The losses of `total` steps, fetched together after the first step, every `FETCH_EVERY` and after the last."""

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total = name, total
        self._waiting: list[jax.Array] = []
        self.fetched: list[float] = []

    def __len__(self) -> int:
        return len(self.fetched) + len(self._waiting)

    def add(self, loss: jax.Array) -> None:
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
