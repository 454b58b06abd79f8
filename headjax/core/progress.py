"""Progress as a value: long-running functions take one and know nothing of the terminal, the pipe or the log."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager

from rich.console import Console
from rich.text import Text

Update = Callable[[int, Mapping[str, float]], None]
"""Called with the number of units done and the latest measurements to show beside the bar."""

Progress = Callable[[str, int, str], AbstractContextManager[Update]]
"""Opens a bar: the name of the work, the number of units (0 is unknown), and the name of a unit."""

INTERVAL = 10.0
"""Seconds between lines of progress where no terminal shows bars."""


@contextlib.contextmanager
def silent(title: str, total: int, unit: str) -> Iterator[Update]:
    """Shows nothing."""
    yield lambda done, values: None


def shown_on(console: Console) -> Progress:
    """Return bars where the console is a terminal; elsewhere (a pipe, a log) a plain line every few seconds."""
    return _bars(console) if console.is_terminal else Lines(lambda line: console.print(Text(line), soft_wrap=True))


def _bars(console: Console) -> Progress:
    """Return progress bars, with time left and the latest measurements."""

    @contextlib.contextmanager
    def opened(title: str, total: int, unit: str) -> Iterator[Update]:
        from rich import progress

        columns = (
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn(unit),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[values]}"),
        )
        with progress.Progress(*columns, console=console, transient=True) as shown:
            task = shown.add_task(title, total=total or None, values="")

            def update(done: int, values: Mapping[str, float]) -> None:
                shown.update(task, completed=done, values=measurements(values, "  "))

            yield update

    return opened


class Lines:
    """Shows progress as lines: the work, its share that is done, the latest measurements, the time it has taken.

    The first line comes after some seconds, so that a short command prints none. A line also comes while nothing is
    reported, as in a compilation.
    """

    def __init__(self, write: Callable[[str], None], interval: float = INTERVAL) -> None:
        """Write lines with `write`, `interval` seconds apart over all stages."""
        self._write, self._interval = write, interval
        self._due = time.monotonic() + interval

    @contextlib.contextmanager
    def __call__(self, title: str, total: int, unit: str) -> Iterator[Update]:
        """Show one stage, see `Progress`."""
        begun, closed = time.monotonic(), threading.Event()
        said = title

        def update(done: int, values: Mapping[str, float]) -> None:
            nonlocal said
            of = f" of {total:,}" if total else ""
            said = ", ".join(filter(None, (f"{title}: {unit} {done:,}{of}", measurements(values, ", "))))

        def watch() -> None:
            while not closed.wait(max(self._due - time.monotonic(), 0.0)):
                self._due = time.monotonic() + self._interval
                self._write(f"{said}, after {time.monotonic() - begun:.0f} s")

        watcher = threading.Thread(target=watch, daemon=True, name="progress")
        watcher.start()
        try:
            yield update
        finally:
            closed.set()
            watcher.join()


def measurements(values: Mapping[str, float], between: str) -> str:
    """Return measurements as text, such as `loss 2.5`."""
    return between.join(f"{name} {value:,.4g}" for name, value in values.items())
