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
    """Shows progress as lines: the name of the work, its share that is done, the latest measurements and the time left.

    The first line comes after some seconds, so that a short command prints none. Stages share the interval: one that
    follows another shortly does not start it again. A line also comes while nothing is reported, as in a compilation.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        interval: float = INTERVAL,
        clock: Callable[[], float] = time.monotonic,
        tick: float = 1.0,
    ) -> None:
        """Write lines with `write`.

        Args:
            write: prints a line.
            interval: seconds between lines.
            clock: seconds that have passed since some moment.
            tick: seconds after which it is looked at the clock again while nothing is reported.
        """
        self._write, self._interval, self._clock, self._tick = write, interval, clock, tick
        self._due = clock() + interval
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def __call__(self, title: str, total: int, unit: str) -> Iterator[Update]:
        """Show one stage, see `Progress`."""
        stage = _Stage(title, total, unit, self._clock())
        closed = threading.Event()

        def watch() -> None:
            while not closed.wait(self._tick):
                self._write_if_due(stage)

        def update(done: int, values: Mapping[str, float]) -> None:
            stage.update(done, values, self._clock())
            self._write_if_due(stage)

        watcher = threading.Thread(target=watch, daemon=True, name="progress")
        watcher.start()
        try:
            yield update
        finally:
            closed.set()
            watcher.join()

    def _write_if_due(self, stage: _Stage) -> None:
        with self._lock:
            now = self._clock()
            if now >= self._due:
                self._due = now + self._interval
                self._write(stage.line(now))


class _Stage:
    """The advance of one stage."""

    def __init__(self, title: str, total: int, unit: str, now: float) -> None:
        self._title, self._total, self._unit, self._opened = title, total, unit, now
        self._first: tuple[int, float] | None = None
        self._done, self._last, self._values = 0, now, ""

    def update(self, done: int, values: Mapping[str, float], now: float) -> None:
        # The time before the first unit is done says nothing of the speed: it compiles, or an earlier run did the unit.
        if done and self._first is None:
            self._first = (done, now)
        self._done, self._last, self._values = done, now, measurements(values, ", ")

    def line(self, now: float) -> str:
        of = f" of {self._total:,}" if self._total else ""
        # One unit in all is either still to do or done.
        counted = "" if self._total == 1 else f": {self._unit} {self._done:,}{of}"
        parts = [f"{self._title}{counted}", self._values]
        left = self._left(now)
        parts.append(f"for {_rough(now - self._opened)}" if left is None else f"about {_rough(left)} left")
        return ", ".join(filter(None, parts))

    def _left(self, now: float) -> float | None:
        """Return the seconds left, as of the last report; None without an estimate, or once that time is over."""
        if not self._total or self._first is None or self._done <= self._first[0]:
            return None
        each = (self._last - self._first[1]) / (self._done - self._first[0])
        left = each * (self._total - self._done) - (now - self._last)
        return left if left > 0.0 else None


def measurements(values: Mapping[str, float], between: str) -> str:
    """Return measurements as text, such as `loss 2.5`."""
    return between.join(f"{name} {value:,.4g}" for name, value in values.items())


def _rough(seconds: float) -> str:
    """Return a time without needless digits: `40 s`, `3 min`, `2.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
