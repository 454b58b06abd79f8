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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from headjax.core.errors import HeadjaxError
from headjax.core.progress import Update
from headjax.mesh.distributed import is_first
from headjax.models.config import Batch
from headjax.storage.failures import writing
from headjax.storage.files import json_text, write_file
from headjax.storage.paths import copy_file, is_bucket
from headjax.training.state import TrainState
from headjax.training.step import NumberedStep, StepMetrics

METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"
"""Names in a workdir."""


class Recorder:
    """Records and times the steps of a run."""

    def __init__(self, metrics: MetricWriter, bar: Update, step: int) -> None:
        self._metrics, self._bar = metrics, bar
        self._first = step + 1
        self._speeds: list[float] = []
        self._restart(step)
        bar(step, {})

    def _restart(self, step: int) -> None:
        self._start, self._step = time.perf_counter(), step

    @property
    def tokens_per_second(self) -> float:
        """Tokens read a second without padding: median over the records but the first, which compiles; 0 without."""
        return statistics.median(self._speeds) if self._speeds else 0.0

    def record(self, step: int, measured: StepMetrics) -> None:
        """Record a step's metrics, and the mean time of the steps since the last record."""
        values = {name: float(value) for name, value in measured._asdict().items()}
        seconds = (time.perf_counter() - self._start) / max(step - self._step, 1)
        self._restart(step)
        speed = values["tokens"] / seconds
        if step > self._first:
            self._speeds.append(speed)
        values |= {"tokens_per_second": speed, "step_seconds": seconds}
        self._metrics.write(step, {f"train/{name}": value for name, value in values.items()})
        self._bar(step, {"loss": values["loss"], "tokens/s": speed})

    def diverged(self, step: int) -> None:
        """Record that the run stops here because it diverged."""
        self._metrics.write(step, {"train/diverged": 1.0})

    def settle(self) -> None:
        """Show the records so far, beside a checkpoint."""
        self._metrics.settle()

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record an evaluation, whose time counts for no step."""
        self._metrics.write(step, {f"validation/{name}": value for name, value in metrics.items()})
        self._restart(step)


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


class Board:
    """A file of scalars that TensorBoard reads, written by the thread that records.

    The thread of `tensorboardX.SummaryWriter` ends with a traceback on a full disk, and its owner then waits for it
    without end. Here the failure is an error of the recording.
    """

    def __init__(self, folder: Path, suffix: str, purge_step: int | None) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        folder.mkdir(parents=True, exist_ok=True)
        self._event, self._file = Event, EventsWriter(str(folder / "events"), suffix)
        self.close = self._file.close
        if purge_step is not None:
            self._write(purge_step, session_log=SessionLog(status=SessionLog.START))

    def _write(self, step: int, **content: Any) -> None:
        self._file.write_event(self._event(wall_time=time.time(), step=step, **content))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write scalars of a step by name; an `OSError` if the file cannot be written."""
        from tensorboardX.summary import scalar

        for name, value in values.items():
            self._write(step, summary=scalar(name, value))
        self._file.flush()


class MetricWriter:
    """Appends records to `workdir/metrics.jsonl` and, if asked, to TensorBoard files beside it.

    A continued run first drops the records after the step it continues from, so that every step is recorded once. No
    file is kept open for long: a bucket that is mounted as a folder shows others a file once it is closed. A bucket
    itself gets the records with every checkpoint and at the end (see `Mirror`). Metrics are the same in all processes,
    and only the first one writes them.
    """

    def __init__(self, workdir: Path, first_step: int, tensorboard: bool, *, evaluates_first: bool = False) -> None:
        self._mirror = Mirror(workdir)
        self.path = self._mirror.folder / METRICS
        self._tensorboard = tensorboard
        self._board: Board | None = None
        if is_first():
            records = (record for record in read_metrics(workdir / METRICS) if record["step"] <= first_step)
            kept = [record for record in records if not (evaluates_first and _is_evaluation(record, first_step))]
            write_file(self.path, "".join(json_text(record) + "\n" for record in kept).encode())
            with writing(self.path):
                self._open("", first_step + 1)
            self._mirror.publish()

    def _open(self, suffix: str, purge_step: int | None = None) -> None:
        if self._tensorboard and self._board is None:
            self._board = Board(self._mirror.folder / TENSORBOARD, suffix, purge_step)

    def __enter__(self) -> MetricWriter:
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            self.settle()
        finally:
            self._mirror.close()

    def settle(self) -> None:
        """Close the TensorBoard file, and show a bucket the records; later ones go into another file."""
        if self._board is not None:
            board, self._board = self._board, None
            with writing(self._mirror.folder / TENSORBOARD):
                board.close()
        self._mirror.publish()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write one record; names such as `train/loss` group the curves in TensorBoard.

        In JSON a number that is not finite is null.
        """
        if not is_first():
            return
        with writing(self.path):
            with self.path.open("a") as file:
                file.write(json_text({"step": step, **values}) + "\n")
            self._open(f".{step}")
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


@dataclasses.dataclass(frozen=True)
class ProfiledSteps:
    """Steps to trace: from `first` to `last`, both included, counted from 1 as in the metrics."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> ProfiledSteps:
        """Read a range such as `10:15`."""
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
