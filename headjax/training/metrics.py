"""Where metrics go: JSON lines, TensorBoard, and the last values for the console."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from headjax.mesh.distributed import is_first


class MetricWriter:
    """Appends records to `workdir/metrics.jsonl` and, if asked, to TensorBoard files beside it.

    A continued run first drops the records after the step it continues from, so that every step is recorded once. No
    file is kept open for long: a bucket that is mounted as a folder shows others a file once it is closed.
    """

    def __init__(self, workdir: Path, first_step: int, tensorboard: bool) -> None:
        self.path = workdir / "metrics.jsonl"
        kept = [record for record in read_metrics(self.path) if record["step"] <= first_step]
        self.path.write_text("".join(json.dumps(record) + "\n" for record in kept))
        self._events = str(workdir / "tensorboard") if tensorboard else None
        self._board: Any = None
        if self._events is not None:
            from tensorboardX import SummaryWriter

            self._board = SummaryWriter(self._events, purge_step=first_step + 1)

    def __enter__(self) -> MetricWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.settle()

    def settle(self) -> None:
        """Closes the TensorBoard file; what comes later goes into another."""
        if self._board is not None:
            self._board.close()
            self._board = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one record; names such as `train/loss` group the curves in TensorBoard."""
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
        if self._events is None:
            return
        if self._board is None:
            from tensorboardX import SummaryWriter

            self._board = SummaryWriter(self._events, filename_suffix=f".{step}")
        for name, value in values.items():
            self._board.add_scalar(name, value, step)


class NoMetrics(MetricWriter):
    """Writes nothing: what every process but the first does with metrics, which are the same on all."""

    def __init__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def write(self, step: int, values: Mapping[str, float]) -> None:
        pass

    def settle(self) -> None:
        pass


def metric_writer(workdir: Path, first_step: int, tensorboard: bool) -> MetricWriter:
    """This process's writer."""
    return MetricWriter(workdir, first_step, tensorboard) if is_first() else NoMetrics()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics file, oldest first; a last line cut off by a crash is left out."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text().splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records
