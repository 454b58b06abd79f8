"""Holding out text: what is evaluated on is never trained on."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from headjax.data.passages import Document, passages, units
from headjax.errors import DataError, require

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
    """Holds out about a fraction of the text, piece by piece.

    Documents are cut at paragraphs into pieces of about `PIECE` characters, and a piece is held out if the hash of its
    text falls into the fraction: adding documents moves none of the others to the other side (of texts above
    20 * `PIECE` characters). Of what is held out, units with a paragraph or a line of at least `COMPARED` characters
    that also occurs in the training text are dropped. Neighbouring pieces on the same side stay one document.

    Raises:
        ConfigError: a fraction that is not between 0 and 1.
        DataError: too little text to hold some out.
    """
    require(0.0 < validation_fraction < 1.0, "validation_fraction", f"must be within (0, 1), got {validation_fraction}")
    size = min(PIECE, max(SMALLEST_PIECE, sum(len(document.text) for document in documents) // 20))
    cut = [pieces(units(document.text, size), size) for document in documents]
    hashes = {text: text_hash(text) for text in ("".join(piece) for parts in cut for piece in parts)}
    if len(hashes) < 2:
        raise DataError(f"{documents[0].name}: too little text to hold some of it out for validation")
    ordered = sorted(hashes.values())
    bound = min(max(validation_fraction, ordered[0]), ordered[-2])
    sides = [
        [(unit, "validation" if hashes["".join(piece)] <= bound else "train") for piece in parts for unit in piece]
        for parts in cut
    ]
    trained = {passage for units_ in sides for unit, side in units_ if side == "train" for passage in passages(unit)}
    found = Split([], [])
    for document, placed in zip(documents, sides, strict=True):
        final = [(unit, _drop_trained(unit, side, trained)) for unit, side in placed]
        for side, group in itertools.groupby(final, key=lambda pair: pair[1]):
            text = "".join(unit for unit, _ in group)
            if side != "dropped" and text.strip():
                getattr(found, side).append(Document(document.name, text))
    if not found.validation:
        raise DataError(f"{documents[0].name}: all text held out for validation also occurs in the training text")
    return found


def _drop_trained(unit: str, side: str, trained: set[str]) -> str:
    return "dropped" if side == "validation" and not trained.isdisjoint(passages(unit)) else side


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
