"""Stop of a training run by a signal, after the step that is being computed."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class StopRequest:
    """Context manager that turns the first SIGINT (Ctrl-C) or SIGTERM into a flag. A second one acts as usual.

    The loop then finishes its step, saves a checkpoint and returns. Signals reach only the main thread; in another
    thread the flag stays unset.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *raised: object) -> None:
        self._restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
