"""TensorBoard's files of events, written by the thread that records.

The writer that `tensorboardX` offers has a thread of its own. Where that thread cannot write, as on a full disk, it
ends with a traceback, and whoever records waits for it without end. Here the failure is an error of the recording.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

SHOWN_WITHIN = 10.0
"""Seconds after which a scalar is in the file, as long as others follow."""


class EventFile:
    """A file of scalars that TensorBoard reads.

    Args:
        folder: made where it does not exist.
        suffix: end of the file's name, which begins with the time in seconds.
        purge_step: TensorBoard forgets what earlier files say of this step and later ones; None forgets nothing.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, folder: Path, suffix: str = "", purge_step: int | None = None) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        folder.mkdir(parents=True, exist_ok=True)
        self._file = EventsWriter(str(folder / "events"), suffix)
        self._flushed = time.monotonic()
        if purge_step is not None:
            started = SessionLog(status=SessionLog.START)
            self._file.write_event(Event(wall_time=time.time(), step=purge_step, session_log=started))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write scalars of a step by name.

        Raises:
            OSError: the file cannot be written.
        """
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        for name, value in values.items():
            self._file.write_event(Event(wall_time=time.time(), step=step, summary=scalar(name, value)))
        if time.monotonic() - self._flushed >= SHOWN_WITHIN:
            self.flush()

    def flush(self) -> None:
        """Flush the lines to the file.

        Raises:
            OSError: the file cannot be written.
        """
        self._file.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Flush the lines to the file, and close it.

        Raises:
            OSError: the file cannot be written.
        """
        self._file.close()
