"""Output of the command line: texts of models, files and their names cannot control the terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

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
        """Print on a stream."""
        super().__init__(file=stream, width=None if stream.isatty() else WIDTH, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render, with the control characters of texts escaped."""
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
