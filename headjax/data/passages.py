"""Documents and the passages they are made of: what is compared when text must not be read twice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

COMPARED = 80
"""Characters from which a repeated passage counts as a repetition; shorter ones (headings, stock phrases) may recur."""

_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n)+")


class Document(NamedTuple):
    """A text and where it comes from.

    Attributes:
        name: a file or a section.
        text: its text.
    """

    name: str
    text: str


def paragraphs(text: str) -> list[str]:
    """Cuts after blank lines. The paragraphs keep their white space: joined, they are the text."""
    ends = [match.end() for match in _BLANK_LINES.finditer(text)]
    starts = [0, *ends]
    return [text[start:end] for start, end in zip(starts, [*ends, len(text)], strict=True) if start < end]


def units(text: str, size: int) -> list[str]:
    """Cuts at paragraphs; one longer than `size` characters at lines; a line longer than that every `size` characters.

    Joined, the units are the text.
    """
    cut: list[str] = []
    for paragraph in paragraphs(text):
        if len(paragraph) <= size:
            cut.append(paragraph)
            continue
        for line in paragraph.splitlines(keepends=True):
            cut.extend(line[start : start + size] for start in range(0, len(line), size))
    return cut


def passages(text: str) -> Iterator[str]:
    """Every paragraph and every line of at least `COMPARED` characters, white space made single spaces."""
    for paragraph in paragraphs(text):
        for passage in {paragraph, *paragraph.splitlines()}:
            plain = " ".join(passage.split())
            if len(plain) >= COMPARED:
                yield plain


def without_repetitions(documents: Iterable[Document]) -> list[Document]:
    """The documents without the paragraphs that an earlier paragraph repeats word for word, and without empty ones."""
    seen: set[str] = set()
    kept = []
    for document in documents:
        fresh = []
        for paragraph in paragraphs(document.text):
            found = set(passages(paragraph))
            if not found & seen:
                fresh.append(paragraph)
            seen |= found
        text = "".join(fresh)
        if text.strip():
            kept.append(Document(document.name, text))
    return kept
