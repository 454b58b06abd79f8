"""Rows: the examples of a task as their source has them, before they are encoded."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from headjax.core.errors import DataError
from headjax.core.share import Share

Split = Literal["train", "validation"]
"""Examples to train on, and examples to evaluate on."""

SPLITS: tuple[Split, ...] = ("train", "validation")


class Row(NamedTuple):
    """An example as its source has it."""

    place: str
    values: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class RowSource:
    """The rows of a split, or a host's share of them, read as often as needed."""

    read: Callable[[Share], Iterable[Row]]
    count: int = 0
    row: Callable[[int], Row] | None = None

    def rows(self, share: Share = Share()) -> Iterable[Row]:
        """Return the rows of a share, without reading the others where the source allows it."""
        return self.read(share)

    def at(self, number: int) -> Row:
        """Return one row by its number."""
        if self.row is None:
            raise TypeError("these rows are read in their order")
        return self.row(number)

    @classmethod
    def of(cls, rows: Sequence[Row]) -> RowSource:
        """Return a source of rows in memory."""
        return cls(lambda share: rows[share.index :: share.count], len(rows), rows.__getitem__)

    @classmethod
    def by_number(cls, row: Callable[[int], Row], count: int) -> RowSource:
        """Return a source of rows that are read one by one, in any order."""
        return cls(lambda share: map(row, range(share.index, count, share.count)), count, row)


Rows = Mapping[Split, RowSource]
"""The rows of a task by split."""


def text_hash(text: str | bytes) -> float:
    """Return a number in [0, 1), uniform over texts and the same in every process."""
    data = text.encode() if isinstance(text, str) else text
    return int.from_bytes(hashlib.sha256(data).digest()[:6], "big") / 2**48


def hold_out(read: Callable[[Share], Iterable[Row]], field: str, fraction: float, place: str) -> dict[Split, RowSource]:
    """Divide rows by the hash of a field: rows with the same text stay together, and added rows move no other."""

    def is_held(row: Row) -> bool:
        value = row.values[field]
        return text_hash(value.tobytes() if isinstance(value, np.ndarray) else str(value)) < fraction

    def side(held: bool) -> RowSource:
        return RowSource(lambda share: (row for row in read(share) if is_held(row) is held))

    sides: set[bool] = set()
    for row in read(Share()):
        sides.add(is_held(row))
        if len(sides) == 2:
            return {"train": side(False), "validation": side(True)}
    raise DataError(f"{place}: too few rows to hold some out; name a file for validation")


def weight(row: Row) -> int:
    """Return the approximate size of a row in bytes."""
    return sum(value.nbytes if isinstance(value, np.ndarray) else len(str(value)) for value in row.values.values())


def chunks(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    """Yield consecutive rows in lists of about `size` bytes; a shard is written from each list."""
    chunk: list[Row] = []
    held = 0
    for row in rows:
        chunk.append(row)
        held += weight(row)
        if held >= size:
            yield chunk
            chunk, held = [], 0
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
