"""The rows of a task before they are encoded, wherever they come from."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

Split = Literal["train", "validation"]
"""Examples to train on, and examples to evaluate on."""


class TaskRow(NamedTuple):
    """An example as its source has it.

    Attributes:
        place: where it stands (file and line, or data set and number), to start an error message with.
        values: its fields: texts, numbers, lists of texts, or arrays.
    """

    place: str
    values: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class RowSource:
    """The rows of a split, read as often as needed.

    Attributes:
        rows: starts reading.
        count: number of rows where it is known before reading; 0 is unknown.
        row: reads one row by its number, where that can be done.
    """

    rows: Callable[[], Iterable[TaskRow]]
    count: int = 0
    row: Callable[[int], TaskRow] | None = None

    def at(self, number: int) -> TaskRow:
        """Return one row by its number.

        Raises:
            TypeError: the rows can only be read in their order.
        """
        if self.row is None:
            raise TypeError("these rows are read in their order")
        return self.row(number)

    @classmethod
    def of(cls, rows: Sequence[TaskRow]) -> RowSource:
        """Rows that are in memory."""
        return cls(lambda: rows, len(rows), rows.__getitem__)

    @classmethod
    def by_number(cls, row: Callable[[int], TaskRow], count: int) -> RowSource:
        """Rows that are read one by one, in any order."""
        return cls(lambda: map(row, range(count)), count, row)


Rows = Mapping[Split, RowSource]
"""The rows of a task by split."""


def weight(row: TaskRow) -> int:
    """About how many bytes a row holds."""
    return sum(value.nbytes if isinstance(value, np.ndarray) else len(str(value)) for value in row.values.values())


def chunks(rows: Iterable[TaskRow], size: int) -> Iterator[list[TaskRow]]:
    """Consecutive rows of about `size` bytes together, which is what one shard is made of."""
    chunk: list[TaskRow] = []
    held = 0
    for row in rows:
        chunk.append(row)
        held += weight(row)
        if held >= size:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk


def fingerprint(rows: Sequence[TaskRow]) -> str:
    """Hash of the rows' values, 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for row in rows:
        for name, value in row.values.items():
            digest.update(name.encode())
            digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    return digest.hexdigest()[:16]
