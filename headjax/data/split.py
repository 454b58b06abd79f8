"""Holding out text: what is evaluated on is never trained on."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from headjax.core.errors import DataError, require
from headjax.data.passages import Document, passages, units

PIECE = 4000
"""Characters of one piece, the unit of the split: a short document is one piece, a long one several."""

SMALLEST_PIECE = 200
"""Characters of one piece of the smallest texts, which are cut into about twenty pieces."""


class Split(NamedTuple):
    """A split corpus.

    Attributes:
        train: documents to train on.
        validation: documents to evaluate on.
    """

    train: list[Document]
    validation: list[Document]


def split(documents: Sequence[Document], validation_fraction: float) -> Split:
    """Both sides of `HeldOut` in memory."""
    sides = HeldOut(lambda: documents, validation_fraction)
    return Split(list(sides.train()), list(sides.validation()))


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Holds out about a fraction of the text, piece by piece; neither side is held in memory.

    Documents are cut at paragraphs into pieces of about `PIECE` characters, and a piece is held out if the hash of its
    text falls into the fraction: adding documents moves none of the others to the other side (of texts above
    20 * `PIECE` characters). Of what is held out, units with a paragraph or a line of at least `COMPARED` characters
    that also occurs in the training text are dropped. Neighbouring pieces on the same side stay one document.

    Attributes:
        documents: reads the documents from the start; called several times.
        validation_fraction: how much to hold out.

    Raises:
        ConfigError: a fraction that is not between 0 and 1.
        DataError: too little text to hold some out.
    """

    documents: Callable[[], Iterable[Document]]
    validation_fraction: float

    def __post_init__(self) -> None:
        fraction = self.validation_fraction
        require(0.0 < fraction < 1.0, "validation_fraction", f"must be within (0, 1), got {fraction}")
        self.bound  # noqa: B018  (computed here, so that too little text is found before any work)

    def train(self) -> Iterator[Document]:
        """The documents to train on."""
        return self._joined("train", frozenset())

    def validation(self) -> Iterator[Document]:
        """The documents to evaluate on; all of the text is read before the first.

        Raises:
            DataError: all of them also occur in the training text.
        """
        held = {mark for unit, side in self._units() if side == "validation" for mark in _marks(unit)}
        trained = frozenset(
            mark for unit, side in self._units() if side == "train" for mark in _marks(unit) if mark in held
        )
        document = None
        for document in self._joined("validation", trained):
            yield document
        if document is None:
            raise DataError(f"{self._name()}: all text held out for validation also occurs in the training text")

    @functools.cached_property
    def size(self) -> int:
        """Characters of a piece."""
        total = 0
        for document in self.documents():
            total += len(document.text)
            if total >= 20 * PIECE:
                break
        return min(PIECE, max(SMALLEST_PIECE, total // 20))

    @functools.cached_property
    def bound(self) -> float:
        """The highest hash of a piece that is held out: the fraction, or what leaves a piece on either side."""
        hashes: set[float] = set()
        low = 0
        for document in self.documents():
            for piece in self._pieces(document):
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

    def _sides(self, document: Document) -> Iterator[tuple[str, str]]:
        """Every unit of a document with its side."""
        for piece in self._pieces(document):
            side = "validation" if text_hash("".join(piece)) <= self.bound else "train"
            yield from ((unit, side) for unit in piece)

    def _units(self) -> Iterator[tuple[str, str]]:
        return (placed for document in self.documents() for placed in self._sides(document))

    def _joined(self, wanted: str, dropped: frozenset[bytes]) -> Iterator[Document]:
        """One side's documents without the units that have a passage among those to drop."""
        for document in self.documents():
            placed = (
                (unit, side if side != wanted or dropped.isdisjoint(_marks(unit)) else "dropped")
                for unit, side in self._sides(document)
            )
            for side, group in itertools.groupby(placed, key=lambda pair: pair[1]):
                if side == wanted and (text := "".join(unit for unit, _ in group)).strip():
                    yield Document(document.name, text)


def _marks(unit: str) -> list[bytes]:
    """Hashes of a unit's passages, which are smaller than they."""
    return [hashlib.blake2b(passage.encode(), digest_size=8).digest() for passage in passages(unit)]


def pieces(cut: list[str], size: int) -> list[list[str]]:
    """Neighbouring units, taken together until they have at least `size` characters."""
    found: list[list[str]] = []
    room = 0
    for unit in cut:
        if room <= 0:
            found.append([])
            room = size
        found[-1].append(unit)
        room -= len(unit)
    return found


def text_hash(text: str) -> float:
    """A number in [0, 1), uniform over texts, the same in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48
