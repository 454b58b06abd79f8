"""Progress bars as a value: long-running functions take one and know nothing of the terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager

from rich.console import Console

Update = Callable[[int, Mapping[str, float]], None]
"""Called with the number of units done and the latest measurements to show beside the bar."""

Progress = Callable[[str, int, str], AbstractContextManager[Update]]
"""Opens a bar: what is going on, how many units in all (0 is unknown), and what a unit is called."""


@contextlib.contextmanager
def silent(title: str, total: int, unit: str) -> Iterator[Update]:
    """Shows nothing."""
    yield lambda done, values: None


def bars(console: Console) -> Progress:
    """Progress bars on a console, with time left and the latest measurements; nothing where no terminal shows them."""
    if not console.is_terminal:
        return silent

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
                text = "  ".join(f"{name} {value:,.4g}" for name, value in values.items())
                shown.update(task, completed=done, values=text)

            yield update

    return opened
