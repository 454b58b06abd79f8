"""Ctrl-C, which waits for imports: an extension that it stops halfway raises another error or ends the process."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
from collections.abc import Iterator
from types import FrameType

AGAIN = 0.05
"""Seconds after which an interrupt that had to wait comes again."""


class _Patient:
    """A handler of SIGINT that raises `KeyboardInterrupt`, later where that would do harm."""

    def __init__(self) -> None:
        self.again: threading.Timer | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.again = threading.Timer(AGAIN, _come_again, [number]) if _is_delicate(frame) else None
        if self.again is None:
            raise KeyboardInterrupt
        self.again.daemon = True
        self.again.start()


@contextlib.contextmanager
def patient_interrupts() -> Iterator[None]:
    """Let Ctrl-C raise `KeyboardInterrupt` in the body only where no module is being imported or garbage collected.

    JAX has Python called at collections, where an exception is printed and dropped, and other libraries do. A handler
    that somebody else has set stays, and so does one of another thread.

    Raises:
        KeyboardInterrupt: also at the end of the body, if an interrupt still waits.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    patient = _Patient()
    signal.signal(signal.SIGINT, patient)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if patient.again is not None:
            patient.again.cancel()
            raise KeyboardInterrupt


def _come_again(number: int) -> None:
    if hasattr(signal, "pthread_kill"):  # also ends what the main thread waits for
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        signal.raise_signal(number)


def _is_delicate(frame: FrameType | None) -> bool:
    """Return whether a frame belongs to an import or to a callback of the garbage collector."""
    callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap" or frame.f_code in callbacks:
            return True
        frame = frame.f_back
    return False
