"""The console of tables, messages and bars."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from headjax.core.terminal import printable, unspelled

WIDTH = 140
"""Columns of a table where no terminal says how wide it is (a pipe, a log)."""


class Terminal(Console):
    """A console that spells control characters of texts; its own, for colours and bars, it writes."""

    def __init__(self, stream: IO[str], **settings: Any) -> None:
        """Print on a stream."""
        super().__init__(file=unspelled(stream), width=None if stream.isatty() else WIDTH, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render, with the control characters of texts spelled."""
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
