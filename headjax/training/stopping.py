"""Stop of a training run by a signal or after a time, after the step that is being computed."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def stop_requests(seconds: float | None = None) -> Iterator[threading.Event]:
    """Yield an event that the first SIGINT (Ctrl-C) or SIGTERM sets, or time; a second signal acts as usual.

    Signals reach only the main thread.
    """
    requested = threading.Event()
    timer = threading.Timer(seconds or 0.0, requested.set)
    timer.daemon = True
    if seconds is not None:
        timer.start()
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(*_: object) -> None:
        requested.set()
        restore()

    signals = threading.current_thread() is threading.main_thread()
    for number in SIGNALS if signals else ():
        signal.signal(number, handle)
    try:
        yield requested
    finally:
        timer.cancel()
        if signals:
            restore()
