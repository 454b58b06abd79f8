"""Stop of a training run by a signal, after the step that is being computed."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """Yield an event that the first SIGINT (Ctrl-C) or SIGTERM sets; a second one acts as usual.

    Signals reach only the main thread; in another thread the event stays as it is.
    """
    requested = threading.Event()
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(*_: object) -> None:
        requested.set()
        restore()

    if threading.current_thread() is not threading.main_thread():
        yield requested
        return
    for number in SIGNALS:
        signal.signal(number, handle)
    try:
        yield requested
    finally:
        restore()
