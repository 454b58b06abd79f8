"""Records of a run: metrics as JSON lines and TensorBoard files, the time of its steps, and traces of some of them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from headjax.core.errors import HeadjaxError
from headjax.core.progress import Update
from headjax.mesh.distributed import is_first
from headjax.models.config import Batch
from headjax.storage.failures import writing
from headjax.storage.files import json_text, write_file
from headjax.storage.paths import copy_file, is_bucket
from headjax.training.event_files import EventFile
from headjax.training.state import TrainState
from headjax.training.step import NumberedStep, StepMetrics

METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"
"""Names in a workdir."""


class Recorder:
    """Records and times the steps of a run.

    Args:
        metrics: destination of the records.
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
        """Tokens read a second without padding: median over the records but the first, which compiles; 0 without."""
        return statistics.median(self._speeds) if self._speeds else 0.0

    def timed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches, and time how long each is waited for."""
        while True:
            with self._clock.input(None if self._last is None else self._last.loss):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def stepped(self, measured: StepMetrics) -> None:
        """Take notice of a step that has been started."""
        self._last = measured

    def record(self, step: int, measured: StepMetrics) -> None:
        """Record a step's metrics and the time of the steps since the last record."""
        values = {name: float(value) for name, value in measured._asdict().items()}
        seconds = self._clock.read(step)
        speed = values["tokens"] / seconds.step_seconds
        if step > self._first:
            self._speeds.append(speed)
        values |= {"tokens_per_second": speed} | seconds._asdict()
        self._metrics.write(step, {f"train/{name}": value for name, value in values.items()})
        self._bar(step, {"loss": values["loss"], "tokens/s": speed})

    def diverged(self, step: int) -> None:
        """Record that the run stops here because it diverged."""
        self._metrics.write(step, {"train/diverged": 1.0})

    @contextlib.contextmanager
    def saving(self, state: TrainState) -> Iterator[None]:
        """Time the start of a checkpoint of this state; a bucket then shows the records so far, too."""
        with self._clock.checkpoint(state):
            yield
        self._metrics.settle()

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record an evaluation, whose time counts for no step."""
        self._metrics.write(step, {f"validation/{name}": value for name, value in metrics.items()})
        self._clock.restart(step)


class Mirror:
    """A folder of this machine whose files end up below a path: that path itself, or a copy of a bucket's.

    Nothing can be appended to an object of a bucket, so files that grow are copied whole.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = tempfile.TemporaryDirectory(prefix="headjax-") if is_bucket(path) else None
        self.folder = path if self._temporary is None else Path(self._temporary.name)

    def publish(self) -> None:
        """Copy the files to a bucket."""
        if self._temporary is not None:
            for file in (file for file in self.folder.rglob("*") if file.is_file()):
                target = self._path / file.relative_to(self.folder).as_posix()
                with writing(target):
                    copy_file(file, target)

    def close(self) -> None:
        """Copy the files, and delete a temporary folder."""
        try:
            self.publish()
        finally:
            if self._temporary is not None:
                self._temporary.cleanup()


class MetricWriter:
    """Appends records to `workdir/metrics.jsonl` and, if asked, to TensorBoard files beside it.

    A continued run first drops the records after the step it continues from, so that every step is recorded once. No
    file is kept open for long: a bucket that is mounted as a folder shows others a file once it is closed. A bucket
    itself gets the records with every checkpoint and at the end (see `Mirror`). Metrics are the same in all processes,
    and only the first one writes them.

    Args:
        workdir: the run's folder.
        first_step: step that the run continues from.
        tensorboard: whether to write TensorBoard files.
        evaluates_first: whether the run evaluates the parameters of that step again; their record is dropped, too.

    Raises:
        HeadjaxError: a file cannot be written.
    """

    def __init__(self, workdir: Path, first_step: int, tensorboard: bool, *, evaluates_first: bool = False) -> None:
        self._mirror = Mirror(workdir)
        self.path = self._mirror.folder / METRICS
        self._tensorboard = tensorboard and is_first()
        self._board: EventFile | None = None
        if is_first():
            records = (record for record in read_metrics(workdir / METRICS) if record["step"] <= first_step)
            kept = [record for record in records if not (evaluates_first and _is_evaluation(record, first_step))]
            write_file(self.path, "".join(json_text(record) + "\n" for record in kept).encode())
            with writing(self.path):
                self._open(purge_step=first_step + 1)
            self._mirror.publish()

    def _open(self, suffix: str = "", purge_step: int | None = None) -> None:
        if self._tensorboard and self._board is None:
            self._board = EventFile(self._mirror.folder / TENSORBOARD, suffix, purge_step)

    def __enter__(self) -> MetricWriter:
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            self.settle()
        finally:
            self._mirror.close()

    def settle(self) -> None:
        """Close the TensorBoard file; later records go into another.

        Raises:
            HeadjaxError: a file cannot be written.
        """
        if self._board is not None:
            board, self._board = self._board, None
            with writing(self._mirror.folder / TENSORBOARD):
                board.close()
        self._mirror.publish()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write one record; names such as `train/loss` group the curves in TensorBoard.

        In JSON a number that is not finite is null.

        Raises:
            HeadjaxError: a file cannot be written.
        """
        if not is_first():
            return
        with writing(self.path):
            with self.path.open("a") as file:
                file.write(json_text({"step": step, **values}) + "\n")
            self._open(suffix=f".{step}")
            if self._board is not None:
                self._board.write(step, values)


def _is_evaluation(record: Mapping[str, Any], step: int) -> bool:
    return record["step"] == step and any(name.startswith("validation/") for name in record)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the records of a metrics file, oldest first; a line cut off by a crash or damaged is skipped.

    A null is a number that was not finite, and NaN here.
    """
    if not path.exists():
        return []
    records = []
    for line in path.read_bytes().decode(errors="replace").splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                records.append({name: math.nan if value is None else value for name, value in record.items()})
    return records


class StepSeconds(NamedTuple):
    """Seconds of one step, the mean since the clock was last read.

    Attributes:
        step_seconds: the whole step; the three below add up to it.
        compute_seconds: the rest: computing, and the host's work meanwhile.
        input_wait_seconds: the devices had nothing to do, because the batch was not there yet.
        checkpoint_wait_seconds: a checkpoint was copied off the devices, or the one before was not yet written.
    """

    step_seconds: float
    compute_seconds: float
    input_wait_seconds: float
    checkpoint_wait_seconds: float


class StepClock:
    """Splits the time between readings into input wait, checkpoint wait and the rest.

    Steps are computed while the host continues; fetching a batch is a wait only where the step before has ended by
    then. Such a wait counts whole, also the part of it during which the step before was still running.
    """

    def __init__(self, step: int) -> None:
        self.restart(step)

    def restart(self, step: int) -> None:
        """Forget the time so far; an evaluation between two steps is no part of either."""
        self._start, self._step = time.perf_counter(), step
        self._input = self._checkpoint = 0.0

    @contextlib.contextmanager
    def input(self, running: Any) -> Iterator[None]:
        """Time the fetching of a batch.

        Args:
            running: an array that the step before computes; None without a step before.
        """
        start = time.perf_counter()
        yield
        if running is None or running.is_ready():
            self._input += time.perf_counter() - start

    @contextlib.contextmanager
    def checkpoint(self, state: object) -> Iterator[None]:
        """Time the start of a checkpoint of this state, whose computation is waited for first."""
        jax.block_until_ready(state)
        start = time.perf_counter()
        yield
        self._checkpoint += time.perf_counter() - start

    def read(self, step: int) -> StepSeconds:
        """Return the split since the last reading, and restart."""
        steps = max(step - self._step, 1)
        whole = (time.perf_counter() - self._start) / steps
        waits = (self._input / steps, self._checkpoint / steps)
        self.restart(step)
        return StepSeconds(whole, whole - sum(waits), *waits)


@dataclasses.dataclass(frozen=True)
class ProfiledSteps:
    """Steps to trace: from `first` to `last`, both included, counted from 1 as in the metrics."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> ProfiledSteps:
        """Read a range such as `10:15`.

        Raises:
            HeadjaxError: it is not `FIRST:LAST` with 1 <= FIRST <= LAST.
        """
        found = re.fullmatch(r"([0-9]{1,18}):([0-9]{1,18})", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise HeadjaxError(f"--profile-steps: expected FIRST:LAST such as 10:15, got {text!r}")
        return cls(int(found[1]), int(found[2]))

    def check(self, steps: int) -> None:
        """Raise `HeadjaxError` when a run of `steps` steps ends before the last one to trace."""
        if self.last > steps:
            raise HeadjaxError(f"--profile-steps: {self.first}:{self.last} goes beyond the run's {steps} steps")


class Profiler:
    """Writes a trace of some steps of a run below a folder, as `plugins/profile/DATE/HOST.xplane.pb`.

    A trace shows how devices and host spend these steps. Every process traces its own devices. Traces are read by
    xprof, on its own or within TensorBoard.
    """

    def __init__(self, steps: ProfiledSteps | None, folder: Path) -> None:
        self._steps = steps
        self._folder = folder
        self._mirror: Mirror | None = None

    def __enter__(self) -> Profiler:
        return self

    def __exit__(self, *raised: object) -> None:
        self._end()

    def around(self, step: NumberedStep) -> NumberedStep:
        """Return the same step, traced where its number says so; xprof distinguishes steps by their numbers."""

        def traced(number: int, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
            self._start(number)
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                state, measured = step(number, state, batch)
            self._stop(number, measured)
            return state, measured

        return traced

    def _start(self, number: int) -> None:
        if self._steps is not None and self._steps.first <= number <= self._steps.last and self._mirror is None:
            self._mirror = Mirror(self._folder)
            self._mirror.folder.mkdir(parents=True, exist_ok=True)
            jax.profiler.start_trace(str(self._mirror.folder))

    def _stop(self, number: int, measured: StepMetrics) -> None:
        """End the trace once the last step to trace has been computed."""
        if self._mirror is not None and self._steps is not None and number >= self._steps.last:
            jax.block_until_ready(measured.loss)
            self._end()

    def _end(self) -> None:
        if self._mirror is not None:
            jax.profiler.stop_trace()
            self._mirror.close()
            self._mirror = None
