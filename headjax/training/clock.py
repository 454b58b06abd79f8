"""Where the time of training steps goes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax


class StepSeconds(NamedTuple):
    """Seconds of one step, the mean since the clock was last read.

    Attributes:
        step_seconds: all of it; the three below add up to it.
        compute_seconds: what is left: computing, and what the host does meanwhile.
        input_wait_seconds: the devices had nothing to do, because the batch was not there yet.
        checkpoint_wait_seconds: a checkpoint was copied off the devices, or the one before was not yet written.
    """

    step_seconds: float
    compute_seconds: float
    input_wait_seconds: float
    checkpoint_wait_seconds: float


class StepClock:
    """Splits the time between readings into input wait, checkpoint wait and the rest.

    Steps are computed while the host goes on; fetching a batch is a wait only where the step before has ended by then.
    Such a wait counts whole, also the part of it during which the step before was still running.
    """

    def __init__(self, step: int) -> None:
        self.restart(step)

    def restart(self, step: int) -> None:
        """Forgets what was; what lies between two steps (an evaluation) is no part of either."""
        self._start, self._step = time.perf_counter(), step
        self._input = self._checkpoint = 0.0

    @contextlib.contextmanager
    def input(self, running: Any) -> Iterator[None]:
        """Around the fetching of a batch.

        Args:
            running: an array that the step before computes; None where there is none.
        """
        start = time.perf_counter()
        yield
        if running is None or running.is_ready():
            self._input += time.perf_counter() - start

    @contextlib.contextmanager
    def checkpoint(self, state: object) -> Iterator[None]:
        """Around the start of a checkpoint of this state, whose computation is waited for first."""
        jax.block_until_ready(state)
        start = time.perf_counter()
        yield
        self._checkpoint += time.perf_counter() - start

    def read(self, step: int) -> StepSeconds:
        """The split since the last reading, and a restart."""
        steps = max(step - self._step, 1)
        whole = (time.perf_counter() - self._start) / steps
        waits = (self._input / steps, self._checkpoint / steps)
        self.restart(step)
        return StepSeconds(whole, whole - sum(waits), *waits)
