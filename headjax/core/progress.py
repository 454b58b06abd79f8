"""Progress of long computations as bars or lines, and a console that escapes control characters.

Long-running functions take a `Progress` or an `Update` as an argument and do not depend on the terminal.
"""

from __future__ import annotations

import contextlib
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from headjax.core.numbers import duration

Update = Callable[[int, Mapping[str, float]], None]
"""Called with the number of units done and the latest measurements to show beside the bar."""

Progress = Callable[[str, int, str], AbstractContextManager[Update]]
"""Opens a stage of the work: its name, the number of units (0 is unknown), and the name of a unit; stages can nest."""

FIRST, INTERVAL = 5.0, 10.0
"""Seconds before the first line of progress, and between lines, where no terminal shows bars."""


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
    """Shows progress as lines: the title, the units done, the latest measurements, the time so far.

    The first line comes after `FIRST` seconds, so that a short command prints none; the others at least `INTERVAL`
    apart. They are about the innermost stage, and also come while nothing is reported, as in a compilation.
    """

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._due = clock() + FIRST
        self._stages: list[Callable[[], str]] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def __call__(self, title: str, total: int, unit: str) -> Iterator[Update]:
        begun, state = self._clock(), title
        pace: list[tuple[int, float]] = []  # after the first units, which may hold compilations, and now

        def update(done: int, values: Mapping[str, float]) -> None:
            nonlocal state
            pace[1:] = [(done, self._clock())]
            of = f" of {total:,}" if total else ""
            state = ", ".join(filter(None, (f"{title}: {unit} {done:,}{of}", measurements(values, ", "))))

        def line() -> str:
            text = f"{state}, after {self._clock() - begun:.0f} s"
            if len(pace) < 2 or not pace[0][0] < pace[1][0] < total:
                return text
            (first, since), (done, now) = pace
            return f"{text}, about {duration((total - done) * (now - since) / (done - first))} left"

        outermost = not self._stages
        with self._watched() if outermost else contextlib.nullcontext():
            self._stages.append(line)
            try:
                yield update
            finally:
                self._stages.remove(line)

    def tell(self) -> None:
        """Write a line about the innermost stage, if one is due."""
        with self._lock:
            stage = self._stages[-1:]
            if stage and self._clock() >= self._due:
                self._due = self._clock() + INTERVAL
                self._write(stage[0]())

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Call `tell` twice a second from another thread."""
        closed = threading.Event()

        def watch() -> None:
            while not closed.wait(0.5):
                self.tell()

        watcher = threading.Thread(target=watch, daemon=True, name="progress")
        watcher.start()
        try:
            yield
        finally:
            closed.set()
            watcher.join()


def measurements(values: Mapping[str, float], between: str) -> str:
    """Return measurements as text, such as `loss 2.5`."""
    return between.join(
        f"{name} {value:,}" if isinstance(value, int) else f"{name} {value:,.4g}" for name, value in values.items()
    )


WIDTH = 140
"""Columns of a table where no terminal says how wide it is (a pipe, a log)."""

JOINERS = "\u200c\u200d"
"""Format characters that scripts and emoji need; others reorder or hide text."""


def printable(text: object, kept: str = "\n\t") -> str:
    r"""Return a text with its control characters escaped, such as `\x1b`, but for those that are kept."""
    text = str(text)
    if text.isprintable():
        return text
    hidden = {each for each in text if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - {*kept, *JOINERS}
    return "".join(ascii(each)[1:-1] if each in hidden else each for each in text)


class Terminal(Console):
    """A console that escapes control characters of texts; its own, for colours and bars, it writes."""

    def __init__(self, stream: IO[str], **settings: Any) -> None:
        super().__init__(file=stream, width=None if stream.isatty() else WIDTH, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, Text) and not renderable.plain.isprintable():
            renderable = renderable.copy()
            renderable.plain = printable(renderable.plain)
        return super().render(renderable, options)

    def tell(self, text: str) -> None:
        """Print a text as it is, without wrapping."""
        self.print(Text(text), soft_wrap=True)

    def on_broken_pipe(self) -> None:
        """Leave the exit code to the command line; rich would exit with 1."""
        raise BrokenPipeError
