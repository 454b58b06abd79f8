"""Rows: the examples of a task as their source has them, before they are encoded, and which of them are held out."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from headjax.core.errors import DataError
from headjax.core.programs import Share

Split = Literal["train", "validation"]  # examples to train on, and examples to evaluate on
SPLITS: tuple[Split, ...] = ("train", "validation")


class Row(NamedTuple):
    """An example as its source has it; of a table also the columns by field."""

    place: str
    values: Mapping[str, Any]
    columns: Mapping[str, str] = {}


@dataclasses.dataclass(frozen=True)
class RowSource:
    """The rows of a split, or a host's share of them, read as often as needed; some sources know each by its number."""

    read: Callable[[Share], Iterable[Row]]
    count: int = 0
    at: Callable[[int], Row] | None = None

    def rows(self, share: Share = Share()) -> Iterable[Row]:
        """Return the rows of a share, without reading the others where the source allows it."""
        return self.read(share)

    @classmethod
    def of(cls, rows: Sequence[Row]) -> RowSource:
        return cls.by_number(rows.__getitem__, len(rows))

    @classmethod
    def by_number(cls, row: Callable[[int], Row], count: int) -> RowSource:
        """Return a source of rows that are read one by one, in any order."""
        return cls(lambda share: map(row, range(share.index, count, share.count)), count, row)


Rows = Mapping[Split, RowSource]  # of a task


def text_hash(text: str) -> float:
    """Return a number in [0, 1), uniform over texts and the same in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


def hold_out(read: Callable[[Share], Iterable[Row]], field: str, fraction: float, place: str) -> dict[Split, RowSource]:
    """Divide rows by the hash of a field: rows with the same text stay together, and added rows move no other."""

    def is_held(row: Row) -> bool:
        return text_hash(str(row.values[field])) < fraction

    def side(held_out: bool) -> RowSource:
        return RowSource(lambda share: (row for row in read(share) if is_held(row) is held_out))

    sides: set[bool] = set()
    for row in read(Share()):
        sides.add(is_held(row))
        if len(sides) == 2:
            return {"train": side(False), "validation": side(True)}
    raise DataError(f"{place}: too few rows to hold some out; name a file for validation")


def chunks(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    """Yield consecutive rows in lists of about `size` bytes; a shard is written from each list."""
    chunk: list[Row] = []
    total = 0
    for row in rows:
        chunk.append(row)
        total += sum(each.nbytes if isinstance(each, np.ndarray) else len(str(each)) for each in row.values.values())
        if total >= size:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk


def fingerprint(rows: Sequence[Row]) -> str:
    """Return the hash of the rows' values, 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for row in rows:
        for name, value in row.values.items():
            digest.update(name.encode())
            digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    return digest.hexdigest()[:16]


# Documents, rows with a `text`, of which pieces are held out.

COMPARED = 80  # least number of characters of a repeated passage; shorter ones (headings, stock phrases) may recur

PIECE = 4000
"""Number of characters of a piece, the unit of the division; a short document is one piece, a long one several."""

SMALLEST_PIECE = 200  # least number of characters of a piece; small texts are cut into about twenty pieces
LINES = 20  # lines a paragraph above which a file is one of lines, not of paragraphs

_WORD = re.compile(r"\w\w")
_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n)+")


def document(place: str, text: str) -> Row:
    """Return a text as a row."""
    return Row(place, {"text": text})


def hold_out_files(documents: Sequence[Row], fraction: float) -> Rows:
    """Hold out whole files: those whose name's hash is below the fraction, so the same ones in every Python version.

    Paragraphs of the held-out files that also occur in a training file are dropped.
    """
    train = [row for row in documents if text_hash(row.place) > fraction]
    known = {passage for row in train for passage in passages(row.values["text"])}
    validation = []
    for row in (row for row in documents if text_hash(row.place) <= fraction):
        text = "".join(part for part in paragraphs(row.values["text"]) if known.isdisjoint(passages(part)))
        if text.strip():
            validation.append(document(row.place, text))
    return {"train": RowSource.of(train), "validation": RowSource.of(validation)}


def paragraphs(text: str) -> list[str]:
    """Return a text cut after blank lines. Paragraphs keep their white space: joined, they are the text."""
    ends = [match.end() for match in _BLANK_LINES.finditer(text)]
    starts = [0, *ends]
    return [text[start:end] for start, end in zip(starts, [*ends, len(text)], strict=True) if start < end]


def single_texts(text: str) -> list[str]:
    """Return the paragraphs of a text, or its lines where a blank line is rare; white space becomes single spaces."""
    lines, parts = text.splitlines(), paragraphs(text)
    found = lines if len(lines) > LINES * len(parts) or len(parts) == 1 else parts
    return [" ".join(part.split()) for part in found if _WORD.search(part)]


def pieces(text: str, size: int) -> list[list[str]]:
    """Return a text as groups of neighbouring units, each group of at least `size` characters.

    Units are paragraphs, of those longer than `size` characters lines, of long lines `size` characters.
    """
    groups: list[list[str]] = []
    room = 0
    for paragraph in paragraphs(text):
        lines = [paragraph] if len(paragraph) <= size else paragraph.splitlines(keepends=True)
        for unit in (line[start : start + size] for line in lines for start in range(0, len(line), size)):
            if room <= 0:
                groups.append([])
                room = size
            groups[-1].append(unit)
            room -= len(unit)
    return groups


def passages(text: str) -> Iterator[str]:
    """Yield every paragraph and line of at least `COMPARED` characters; white space becomes single spaces."""
    for paragraph in paragraphs(text):
        for passage in {paragraph, *paragraph.splitlines()}:
            plain = " ".join(passage.split())
            if len(plain) >= COMPARED:
                yield plain


def hold_out_text(read: Callable[[Share], Iterable[Row]], fraction: float) -> dict[Split, RowSource]:
    """Divide documents into two sides, neither of which is kept in memory.

    Documents are cut at paragraphs into pieces of about `PIECE` characters, and a piece is held out if the hash of its
    text is below the fraction. So added documents move no other piece to the other side, if the text has more than
    20 * `PIECE` characters. Held-out units with a passage that also occurs in the training text are dropped.
    Neighbouring pieces of the same side stay one document. The first host alone reads what is held out, from all text.
    """
    place, size = next(iter(read(Share()))).place, _piece_size(read(Share()))
    bound = _greatest_hash(read, size, fraction, place)

    def units(row: Row) -> Iterator[tuple[bool, str, list[bytes]]]:
        """Yield whether each unit is held out, the unit, and its passages as hashes, which take less memory."""
        for piece in pieces(row.values["text"], size):
            held_out = text_hash("".join(piece)) <= bound
            for unit in piece:
                marks = [hashlib.blake2b(passage.encode(), digest_size=8).digest() for passage in passages(unit)]
                yield held_out, unit, marks

    def marks_of(side: bool) -> Iterator[bytes]:
        rows = itertools.chain.from_iterable(map(units, read(Share())))
        return (mark for held_out, _, marks in rows if held_out is side for mark in marks)

    def divided(side: bool, dropped: frozenset[bytes], share: Share) -> Iterator[Row]:
        for row in read(share):
            kept = ((held_out is side and dropped.isdisjoint(marks), unit) for held_out, unit, marks in units(row))
            for is_kept, group in itertools.groupby(kept, key=lambda pair: pair[0]):
                if is_kept and (text := "".join(unit for _, unit in group)).strip():
                    yield document(row.place, text)

    def validation(share: Share) -> Iterator[Row]:
        if share.index:
            return
        held_out = frozenset(marks_of(True))
        rows = divided(True, frozenset(mark for mark in marks_of(False) if mark in held_out), Share())
        if (first := next(rows, None)) is None:
            raise DataError(f"{place}: all text held out for validation also occurs in the training text")
        yield from (first, *rows)

    return {"train": RowSource(lambda share: divided(False, frozenset(), share)), "validation": RowSource(validation)}


def _piece_size(documents: Iterable[Row]) -> int:
    total = 0
    for row in documents:
        total += len(row.values["text"])
        if total >= 20 * PIECE:
            break
    return min(PIECE, max(SMALLEST_PIECE, total // 20))


def _greatest_hash(read: Callable[[Share], Iterable[Row]], size: int, fraction: float, place: str) -> float:
    """Return the greatest hash of a held-out piece: the fraction, or the value that leaves a piece on either side."""
    hashes: set[float] = set()
    low = 0
    for piece in (piece for row in read(Share()) for piece in pieces(row.values["text"], size)):
        number = text_hash("".join(piece))
        low += number <= fraction and number not in hashes
        hashes.add(number)
        if low and len(hashes) - low >= 2:
            return fraction
    if len(hashes) < 2:
        raise DataError(f"{place}: too little text to hold some of it out for validation")
    ordered = sorted(hashes)
    return min(max(fraction, ordered[0]), ordered[-2])
