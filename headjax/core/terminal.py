"""Output of the command line: its control characters are spelled, since models, files and their names may hold any."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import unicodedata
from collections.abc import Iterator
from typing import IO, Any, cast

JOINERS = "\u200c\u200d"
"""Format characters that scripts and emoji need; others reorder or hide text."""


def printable(text: object, kept: str = "\n\t") -> str:
    r"""Return a text with its control characters spelled, such as `\x1b`.

    A terminal obeys control characters (category Cc). Format characters (Cf: bidirectional controls, tags) reorder or
    hide text, and Zl and Zp may break lines.

    Args:
        text: any text, or a value that is printed as text.
        kept: control characters that stay.
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(each if each in kept or not _is_control(each) else ascii(each)[1:-1] for each in text)


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in JOINERS


class Spelled(io.TextIOBase):
    """A text stream that spells control characters on their way to another stream."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text."""
        self.stream.write(printable(text))
        return len(text)

    def flush(self) -> None:
        """Flush the other stream."""
        self.stream.flush()

    def fileno(self) -> int:
        """Return the other stream's descriptor."""
        return self.stream.fileno()

    def isatty(self) -> bool:
        """Return whether the other stream is a terminal."""
        return self.stream.isatty()


def unspelled(stream: IO[str]) -> IO[str]:
    """Return the stream behind a `Spelled` one, for a console that spells texts and writes codes itself."""
    return stream.stream if isinstance(stream, Spelled) else stream


@contextlib.contextmanager
def spelled_streams() -> Iterator[None]:
    """Spell control characters in all that the body prints. A stream that is closed leads nowhere meanwhile.

    Were it left closed, the next file that the process opens would get the number of stdout, and the output of
    libraries.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        out, err = (cast(Any, Spelled(each or nowhere)) for each in (sys.stdout, sys.stderr))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield
