"""What a run tells of itself: metric records, its progress bar, and its speed."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator, Mapping

from headjax.core.progress import Update
from headjax.training.clock import StepClock
from headjax.training.metrics import MetricWriter
from headjax.training.state import TrainState
from headjax.training.step import StepMetrics


class Recorder:
    """Turns what a run does into records, and times it meanwhile.

    Args:
        metrics: where records go.
        bar: shows the advance.
        step: steps done before.
    """

    def __init__(self, metrics: MetricWriter, bar: Update, step: int) -> None:
        self._metrics, self._bar = metrics, bar
        self._clock = StepClock(step)
        self._first = step + 1
        self._speeds: list[float] = []
        self._last: StepMetrics | None = None
        bar(step, {})

    @property
    def tokens_per_second(self) -> float:
        """Tokens read a second, padding left out: median over the records but the first, which compiles; 0 without."""
        return statistics.median(self._speeds) if self._speeds else 0.0

    @contextlib.contextmanager
    def waiting_for_input(self) -> Iterator[None]:
        """Around the fetching of a batch."""
        with self._clock.input(None if self._last is None else self._last.loss):
            yield

    def stepped(self, measured: StepMetrics) -> None:
        """After a step was started."""
        self._last = measured

    def record(self, step: int, measured: StepMetrics) -> None:
        """Records a step's metrics and the time of the steps since the last record."""
        values = {name: float(value) for name, value in measured._asdict().items()}
        seconds = self._clock.read(step)
        speed = values["tokens"] / seconds.step_seconds
        if step > self._first:
            self._speeds.append(speed)
        values |= {"tokens_per_second": speed} | seconds._asdict()
        self._metrics.write(step, {f"train/{name}": value for name, value in values.items()})
        self._bar(step, {"loss": values["loss"], "tokens/s": speed})

    def diverged(self, step: int) -> None:
        """Records that the run stops here."""
        self._metrics.write(step, {"train/diverged": 1.0})

    @contextlib.contextmanager
    def saving(self, state: TrainState) -> Iterator[None]:
        """Around the start of a checkpoint of this state; a mounted bucket shows the records until then, too."""
        with self._clock.checkpoint(state):
            yield
        self._metrics.settle()

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records an evaluation, whose time counts for no step."""
        self._metrics.write(step, {f"validation/{name}": value for name, value in metrics.items()})
        self._clock.restart(step)
