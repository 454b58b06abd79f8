"""Documents, rows with a `text`: cut into pieces, repeated passages removed, a part held out for validation."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator

from headjax.core.errors import DataError
from headjax.core.share import Share
from headjax.data.rows import Row, RowSource, Split, text_hash

COMPARED = 80
"""Least number of characters of a repeated passage; shorter ones (headings, stock phrases) may recur."""

PIECE = 4000
"""Number of characters of a piece, the unit of the division; a short document is one piece, a long one several."""

SMALLEST_PIECE = 200
"""Least number of characters of a piece; small texts are cut into about twenty pieces."""

_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n)+")


def document(place: str, text: str) -> Row:
    """Return a text as a row."""
    return Row(place, {"text": text})


def paragraphs(text: str) -> list[str]:
    """Return a text cut after blank lines. Paragraphs keep their white space: joined, they are the text."""
    ends = [match.end() for match in _BLANK_LINES.finditer(text)]
    starts = [0, *ends]
    return [text[start:end] for start, end in zip(starts, [*ends, len(text)], strict=True) if start < end]


def pieces(text: str, size: int) -> list[list[str]]:
    """Return a text as groups of neighbouring units, each group of at least `size` characters.

    Units are paragraphs, of those longer than `size` characters lines, of long lines `size` characters.
    """
    found: list[list[str]] = []
    room = 0
    for paragraph in paragraphs(text):
        lines = [paragraph] if len(paragraph) <= size else paragraph.splitlines(keepends=True)
        for unit in (line[start : start + size] for line in lines for start in range(0, len(line), size)):
            if room <= 0:
                found.append([])
                room = size
            found[-1].append(unit)
            room -= len(unit)
    return found


def passages(text: str) -> Iterator[str]:
    """Yield every paragraph and line of at least `COMPARED` characters; white space becomes single spaces."""
    for paragraph in paragraphs(text):
        for passage in {paragraph, *paragraph.splitlines()}:
            plain = " ".join(passage.split())
            if len(plain) >= COMPARED:
                yield plain


def without_passages(documents: Iterable[Row], others: Iterable[Row]) -> list[Row]:
    """Return the documents without paragraphs that share a passage with one of the others, and without empty ones."""
    known = {passage for one in others for passage in passages(one.values["text"])}
    kept = (
        document(
            one.place, "".join(part for part in paragraphs(one.values["text"]) if known.isdisjoint(passages(part)))
        )
        for one in documents
    )
    return [one for one in kept if one.values["text"].strip()]


def hold_out_text(read: Callable[[Share], Iterable[Row]], fraction: float) -> dict[Split, RowSource]:
    """Divide documents into two sides, neither of which is kept in memory.

    Documents are cut at paragraphs into pieces of about `PIECE` characters, and a piece is held out if the hash of its
    text is below the fraction. So added documents move no other piece to the other side, if the text has more than
    20 * `PIECE` characters. Held-out units with a passage that also occurs in the training text are dropped.
    Neighbouring pieces of the same side stay one document. The first host alone reads what is held out, from all text.
    """
    size = _piece_size(read(Share()))
    bound = _greatest_hash(read, size, fraction)

    def units(text: str) -> Iterator[tuple[bool, str]]:
        """Yield every unit of a document, and before it whether it is held out."""
        for piece in pieces(text, size):
            held = text_hash("".join(piece)) <= bound
            yield from ((held, unit) for unit in piece)

    def marks(side: bool) -> Iterator[bytes]:
        """Yield the passages of one side as hashes, which take less memory."""
        for one in read(Share()):
            yield from (mark for held, unit in units(one.values["text"]) if held is side for mark in _hashes(unit))

    def divided(side: bool, dropped: frozenset[bytes], share: Share) -> Iterator[Row]:
        for one in read(share):
            kept = (
                (held is side and dropped.isdisjoint(_hashes(unit)), unit) for held, unit in units(one.values["text"])
            )
            for is_kept, group in itertools.groupby(kept, key=lambda pair: pair[0]):
                if is_kept and (text := "".join(unit for _, unit in group)).strip():
                    yield document(one.place, text)

    def validation(share: Share) -> Iterator[Row]:
        if share.index:
            return
        held = frozenset(marks(True))
        found = divided(True, frozenset(mark for mark in marks(False) if mark in held), Share())
        if (first := next(found, None)) is None:
            raise DataError(f"{_name(read)}: all text held out for validation also occurs in the training text")
        yield from (first, *found)

    return {"train": RowSource(lambda share: divided(False, frozenset(), share)), "validation": RowSource(validation)}


def _name(read: Callable[[Share], Iterable[Row]]) -> str:
    return next(iter(read(Share()))).place


def _piece_size(documents: Iterable[Row]) -> int:
    """Return the number of characters of a piece."""
    total = 0
    for one in documents:
        total += len(one.values["text"])
        if total >= 20 * PIECE:
            break
    return min(PIECE, max(SMALLEST_PIECE, total // 20))


def _greatest_hash(read: Callable[[Share], Iterable[Row]], size: int, fraction: float) -> float:
    """Return the greatest hash of a held-out piece: the fraction, or the value that leaves a piece on either side."""
    hashes: set[float] = set()
    low = 0
    for piece in (piece for one in read(Share()) for piece in pieces(one.values["text"], size)):
        number = text_hash("".join(piece))
        low += number <= fraction and number not in hashes
        hashes.add(number)
        if low and len(hashes) - low >= 2:
            return fraction
    if len(hashes) < 2:
        raise DataError(f"{_name(read)}: too little text to hold some of it out for validation")
    ordered = sorted(hashes)
    return min(max(fraction, ordered[0]), ordered[-2])


def _hashes(unit: str) -> list[bytes]:
    return [hashlib.blake2b(passage.encode(), digest_size=8).digest() for passage in passages(unit)]
