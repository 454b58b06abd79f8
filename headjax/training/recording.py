"""Records of a run: metrics as JSON lines and TensorBoard files, the time of its steps, and traces of some of them."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax

from headjax.core.progress import Update
from headjax.mesh.distributed import is_first
from headjax.storage.files import json_text, write_file, writing
from headjax.storage.paths import copy_file, is_bucket
from headjax.training.step import StepMetrics

METRICS, TENSORBOARD = "metrics.jsonl", "tensorboard"

T = TypeVar("T")


class Mirror:
    """A folder of this machine whose files end up below a path: that path itself, or a copy of a bucket's.

    Nothing can be appended to an object of a bucket, so files that grow are copied whole.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = tempfile.TemporaryDirectory(prefix="headjax-") if is_bucket(path) else None
        self.folder = path if self._temporary is None else Path(self._temporary.name)

    def publish(self) -> None:
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

    def __init__(self, folder: Path, first_step: int) -> None:
        """Begin a file, which says that steps from the first one on in earlier files do not count."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        folder.mkdir(parents=True, exist_ok=True)
        self._event, self._file = Event, EventsWriter(str(folder / "events"), f".{first_step}")
        self.close = self._file.close
        self._write(first_step, session_log=SessionLog(status=SessionLog.START))

    def _write(self, step: int, **content: Any) -> None:
        self._file.write_event(self._event(wall_time=time.time(), step=step, **content))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write scalars of a step by name; an `OSError` if the file cannot be written."""
        from tensorboardX.summary import scalar

        for name, value in values.items():
            self._write(step, summary=scalar(name, value))
        self._file.flush()


class Metrics(contextlib.AbstractContextManager["Metrics"]):
    """Records and times the steps of a run, in `workdir/metrics.jsonl` and, if asked, for TensorBoard beside it.

    A continued run first drops the records after the step that it goes on from, and that step's evaluation, which it
    makes anew. A bucket gets the records with every checkpoint and at the end (see `Mirror`). Metrics are the same in
    all processes, and only the first one writes them.
    """

    def __init__(self, workdir: Path, step: int, tensorboard: bool, bar: Update = lambda done, values: None) -> None:
        self.first, self._bar = step + 1, bar
        self._speeds: list[float] = []
        self._restart(step)
        bar(step, {})
        self._mirror = Mirror(workdir)
        self.path, self.publish = self._mirror.folder / METRICS, self._mirror.publish
        self._board: Board | None = None
        if is_first():
            records = (record for record in read_metrics(workdir / METRICS) if record["step"] <= step)
            kept = (record for record in records if record["step"] < step or "validation/loss" not in record)
            write_file(self.path, "".join(json_text(record) + "\n" for record in kept).encode())
            with writing(self.path):
                self._board = Board(self._mirror.folder / TENSORBOARD, self.first) if tensorboard else None
            self.publish()

    def __exit__(self, *raised: object) -> None:
        try:
            if self._board is not None:
                with writing(self._mirror.folder / TENSORBOARD):
                    self._board.close()
        finally:
            self._mirror.close()

    def _restart(self, step: int) -> None:
        self._start, self._step = time.perf_counter(), step

    @property
    def tokens_per_second(self) -> float:
        """Tokens read a second without padding: median over the records but the first, which compiles; 0 without."""
        return statistics.median(self._speeds) if self._speeds else 0.0

    def trained(self, step: int, measured: StepMetrics) -> None:
        """Record a step's metrics, and the mean time of the steps since the last record."""
        values = {name: float(value) for name, value in measured._asdict().items()}
        seconds = (time.perf_counter() - self._start) / max(step - self._step, 1)
        self._restart(step)
        speed = values["tokens"] / seconds
        if step > self.first:
            self._speeds.append(speed)
        values |= {"tokens_per_second": speed, "step_seconds": seconds}
        self.write(step, {f"train/{name}": value for name, value in values.items()})
        self._bar(step, {"loss": values["loss"], "tokens/s": round(speed)})

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record an evaluation, whose time counts for no step."""
        self.write(step, {f"validation/{name}": value for name, value in metrics.items()})
        self._restart(step)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write one record; in JSON a number that is not finite is null."""
        if not is_first():
            return
        with writing(self.path):
            with self.path.open("a") as file:
                file.write(json_text({"step": step, **values}) + "\n")
            if self._board is not None:
                self._board.write(step, values)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the records of a metrics file, oldest first, null as NaN; a line that a crash cut off is skipped."""
    if not path.exists():
        return []
    records = []
    for line in path.read_bytes().decode(errors="replace").splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                records.append({name: math.nan if value is None else value for name, value in record.items()})
    return records


class Profiler(contextlib.ExitStack):
    """Writes a trace of some steps of a run below a folder, as `plugins/profile/DATE/HOST.xplane.pb`, for xprof.

    A trace shows how devices and host spend these steps. Every process traces its own devices.
    """

    def __init__(self, steps: range, folder: Path) -> None:
        """Trace the steps with these numbers, counted from 1 as in the metrics."""
        super().__init__()
        self._steps, self._folder, self._traces = steps, folder, False

    def around(self, number: int, step: Callable[..., T], *args: Any) -> T:
        """Return what a step returns; xprof distinguishes steps by their numbers."""
        if number in self._steps and not self._traces:
            mirror, self._traces = Mirror(self._folder), True
            mirror.folder.mkdir(parents=True, exist_ok=True)
            self.callback(mirror.close)
            self.enter_context(jax.profiler.trace(str(mirror.folder)))
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            result = step(*args)
        if self._traces and number == self._steps[-1]:
            jax.block_until_ready(result)
            self.close()
        return result
