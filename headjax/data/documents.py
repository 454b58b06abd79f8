"""Documents: text files cut into documents, repeated passages removed, a part held out for validation."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from headjax.core.errors import DataError
from headjax.data.rows import Split, text_hash
from headjax.storage.files import read_lines

COMPARED = 80
"""Least number of characters of a repeated passage; shorter ones (headings, stock phrases) may recur."""

PIECE = 4000
"""Number of characters of a piece, the unit of the division; a short document is one piece, a long one several."""

SMALLEST_PIECE = 200
"""Least number of characters of a piece; small texts are cut into about twenty pieces."""

LONGEST = 2**24
"""Number of characters after which a blank line ends a document; after twice as many, any line does."""

_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n)+")
_ARTICLE = re.compile(r" = [^=\n].* = *$")


def read_documents(file: Path) -> Iterator[Document]:
    """Yield the documents of a text file: WikiText's articles, or all of it."""
    place, size, articles, any_text = str(file), 0, False, False
    held: list[str] = []
    for number, line in enumerate(read_lines(file), start=1):
        heading = _ARTICLE.match(line) and (articles or not any_text)
        too_long = size >= LONGEST and (not line.strip() or size >= 2 * LONGEST)
        if (heading and articles) or too_long:
            yield Document(place, "".join(held))
        if heading or too_long:
            held, size, articles = [], 0, articles or bool(heading)
            place = f"{file}: line {number}"
        held.append(line)
        size += len(line)
        any_text = any_text or bool(line.strip())
    yield Document(place, "".join(held))


class Document(NamedTuple):
    """A text with the name of its source."""

    name: str
    text: str


def paragraphs(text: str) -> list[str]:
    """Return a text cut after blank lines. Paragraphs keep their white space: joined, they are the text."""
    ends = [match.end() for match in _BLANK_LINES.finditer(text)]
    starts = [0, *ends]
    return [text[start:end] for start, end in zip(starts, [*ends, len(text)], strict=True) if start < end]


def units(text: str, size: int) -> list[str]:
    """Return a text cut into paragraphs, those longer than `size` characters into lines, long lines after `size`.

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
    """Yield every paragraph and line of at least `COMPARED` characters; white space becomes single spaces."""
    for paragraph in paragraphs(text):
        for passage in {paragraph, *paragraph.splitlines()}:
            plain = " ".join(passage.split())
            if len(plain) >= COMPARED:
                yield plain


def without_repetitions(documents: Iterable[Document]) -> list[Document]:
    """Return the documents without paragraphs that repeat an earlier passage, and without empty documents."""
    seen: set[str] = set()

    def is_fresh(paragraph: str) -> bool:
        found = set(passages(paragraph))
        fresh = seen.isdisjoint(found)
        seen.update(found)
        return fresh

    return _filtered(documents, is_fresh)


def without_passages(documents: Iterable[Document], others: Iterable[Document]) -> list[Document]:
    """Return the documents without paragraphs that share a passage with one of the others, and without empty ones."""
    known = {passage for document in others for passage in passages(document.text)}
    return _filtered(documents, lambda paragraph: known.isdisjoint(passages(paragraph)))


def _filtered(documents: Iterable[Document], keep: Callable[[str], bool]) -> list[Document]:
    kept = (Document(one.name, "".join(filter(keep, paragraphs(one.text)))) for one in documents)
    return [document for document in kept if document.text.strip()]


def split(documents: Sequence[Document], validation_fraction: float) -> dict[Split, list[Document]]:
    """Return both sides of `HeldOut` in memory."""
    sides = HeldOut(lambda: documents, validation_fraction)
    return {"train": list(sides.train()), "validation": list(sides.validation())}


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Division of a text into a training and a validation side, neither of which is kept in memory.

    Documents are cut at paragraphs into pieces of about `PIECE` characters, and a piece is held out if the hash of its
    text is below the fraction. So added documents move no other piece to the other side, if the text has more than
    20 * `PIECE` characters. Held-out units with a passage that also occurs in the training text are dropped.
    Neighbouring pieces of the same side stay one document.
    """

    documents: Callable[[], Iterable[Document]]
    validation_fraction: float

    def __post_init__(self) -> None:
        self.bound  # noqa: B018  (computed here, so that too little text is found before any work)

    def train(self, documents: Iterable[Document] | None = None) -> Iterator[Document]:
        """Yield the documents to train on, of all documents or of some of them."""
        return self._side(False, frozenset(), self.documents() if documents is None else documents)

    def validation(self) -> Iterator[Document]:
        """Yield the documents to evaluate on; all of the text is read before the first."""
        held = frozenset(self._marks(True))
        trained = frozenset(mark for mark in self._marks(False) if mark in held)
        document = None
        for document in self._side(True, trained, self.documents()):
            yield document
        if document is None:
            raise DataError(f"{self._name()}: all text held out for validation also occurs in the training text")

    @functools.cached_property
    def size(self) -> int:
        """Number of characters of a piece."""
        total = 0
        for document in self.documents():
            total += len(document.text)
            if total >= 20 * PIECE:
                break
        return min(PIECE, max(SMALLEST_PIECE, total // 20))

    @functools.cached_property
    def bound(self) -> float:
        """The greatest hash of a held-out piece: the fraction, or the value that leaves a piece on either side."""
        hashes: set[float] = set()
        low = 0
        for piece in (piece for document in self.documents() for piece in self._pieces(document)):
            number = text_hash("".join(piece))
            low += number <= self.validation_fraction and number not in hashes
            hashes.add(number)
            if low and len(hashes) - low >= 2:
                return self.validation_fraction
        if len(hashes) < 2:
            raise DataError(f"{self._name()}: too little text to hold some of it out for validation")
        ordered = sorted(hashes)
        return min(max(self.validation_fraction, ordered[0]), ordered[-2])

    def _name(self) -> str:
        return next(iter(self.documents())).name

    def _pieces(self, document: Document) -> list[list[str]]:
        return pieces(units(document.text, self.size), self.size)

    def _units(self, document: Document) -> Iterator[tuple[bool, str]]:
        """Yield every unit of a document, and before it whether it is held out."""
        for piece in self._pieces(document):
            held = text_hash("".join(piece)) <= self.bound
            yield from ((held, unit) for unit in piece)

    def _marks(self, wanted: bool) -> Iterator[bytes]:
        """Yield the passages of one side as hashes, which take less memory."""
        for document in self.documents():
            yield from (mark for held, unit in self._units(document) if held is wanted for mark in _hashes(unit))

    def _side(self, wanted: bool, dropped: frozenset[bytes], documents: Iterable[Document]) -> Iterator[Document]:
        """Yield one side of documents without the units that have a dropped passage."""
        for document in documents:
            placed = (
                (held is wanted and dropped.isdisjoint(_hashes(unit)), unit) for held, unit in self._units(document)
            )
            for kept, group in itertools.groupby(placed, key=lambda pair: pair[0]):
                if kept and (text := "".join(unit for _, unit in group)).strip():
                    yield Document(document.name, text)


def _hashes(unit: str) -> list[bytes]:
    return [hashlib.blake2b(passage.encode(), digest_size=8).digest() for passage in passages(unit)]


def pieces(cut: list[str], size: int) -> list[list[str]]:
    """Return neighbouring units in groups of at least `size` characters."""
    found: list[list[str]] = []
    room = 0
    for unit in cut:
        if room <= 0:
            found.append([])
            room = size
        found[-1].append(unit)
        room -= len(unit)
    return found
