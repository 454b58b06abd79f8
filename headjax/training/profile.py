"""Profiles of training steps: what devices and host do in them, as a trace for xprof."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import TracebackType

import jax

from headjax.core.errors import HeadjaxError
from headjax.models.config import Batch
from headjax.training.state import TrainState
from headjax.training.step import NumberedStep, StepMetrics


@dataclasses.dataclass(frozen=True)
class ProfiledSteps:
    """Which steps are traced: from `first` to `last`, both included, counted from 1 as in the metrics."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> ProfiledSteps:
        """Reads `10:15`.

        Raises:
            HeadjaxError: it is not `FIRST:LAST` with 1 <= FIRST <= LAST.
        """
        first, _, last = text.partition(":")
        if not first.isdecimal() or not last.isdecimal() or not 1 <= int(first) <= int(last):
            raise HeadjaxError(f"--profile_steps: expected FIRST:LAST such as 10:15, got {text!r}")
        return cls(int(first), int(last))

    def check(self, steps: int) -> None:
        """Raises `HeadjaxError` when a run of so many steps ends before."""
        if self.last > steps:
            raise HeadjaxError(f"--profile_steps: {self.first}:{self.last} goes beyond the run's {steps} steps")


class Profiler:
    """Writes a trace of some steps of a run below a folder, as `plugins/profile/DATE/HOST.xplane.pb`.

    Every process traces its own devices. Traces are read by xprof, on its own or within TensorBoard.
    """

    def __init__(self, steps: ProfiledSteps | None, folder: Path) -> None:
        self._steps = steps
        self._folder = folder
        self._running = False

    def __enter__(self) -> Profiler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running:
            jax.profiler.stop_trace()

    def around(self, step: NumberedStep) -> NumberedStep:
        """The same step, traced where its number says so; xprof tells steps apart by their numbers."""

        def traced(number: int, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
            self._start(number)
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                state, measured = step(number, state, batch)
            self._stop(number, measured)
            return state, measured

        return traced

    def _start(self, number: int) -> None:
        if self._steps is not None and self._steps.first <= number <= self._steps.last and not self._running:
            self._folder.mkdir(parents=True, exist_ok=True)
            jax.profiler.start_trace(str(self._folder))
            self._running = True

    def _stop(self, number: int, measured: StepMetrics) -> None:
        """Ends the trace once the last step to trace has been computed."""
        if self._running and self._steps is not None and number >= self._steps.last:
            jax.block_until_ready(measured.loss)
            jax.profiler.stop_trace()
            self._running = False
