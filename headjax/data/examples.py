"""Examples by index: dicts of arrays that training and evaluation read, padded when they are read."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, Self

import numpy as np

from headjax.core.errors import DataError, require

MULTIPLE = 8
"""Examples are padded to multiples of this length, which suits vector units."""

Record = Mapping[str, np.ndarray]
"""The stored arrays of an example by name, without padding; each has at least one axis."""


class Source(Protocol):
    """Examples by index: dicts of arrays by Hugging Face's names, all of the same shapes."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Mapping[str, np.ndarray]: ...


class Records(Protocol):
    """Records by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Record: ...


class RandomSource(abc.ABC):
    """Examples with random parts, drawn anew each time training reads them (masked tokens, cropped images)."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Number of examples."""

    @abc.abstractmethod
    def draw(self, index: int, generator: np.random.Generator) -> Mapping[str, np.ndarray]:
        """Return an example; its random parts depend on the generator alone."""

    def __getitem__(self, index: int) -> Mapping[str, np.ndarray]:
        return self.draw(index, np.random.default_rng(index))


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Some examples (or records) of a source, in an order of their own.

    Attributes:
        source: all of them.
        indices: the numbers of the chosen examples.
    """

    source: Source
    indices: np.ndarray

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Mapping[str, np.ndarray]:
        return self.source[int(self.indices[index])]


Pad = Callable[[Record, int], dict[str, np.ndarray]]
"""Turns a record into an example of a given length, not below the record's own."""


@dataclasses.dataclass(frozen=True)
class Padded:
    """Examples of different lengths, each padded when it is read.

    Attributes:
        records: the records.
        lengths: `[records]` number of tokens of each, on its longer side.
        length: length to which examples are padded by default.
        pad: function from a record and a length to an example.
    """

    records: Records
    lengths: np.ndarray
    length: int
    pad: Pad

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return self.padded(index, self.length)

    def padded(self, index: int, length: int) -> dict[str, np.ndarray]:
        """Return an example padded to another length, not below its own."""
        return self.pad(self.records[index], length)

    def values(self, name: str) -> np.ndarray:
        """Return `[records]` the values of a target, or of another column with one value per record."""
        return np.concatenate([self.records[index][name] for index in range(len(self))] or [np.zeros(0, np.int32)])

    def select(self, indices: np.ndarray, length: int = 0) -> Self:
        """Return these examples, padded to another length; 0 keeps the length."""
        chosen = Chosen(self.records, indices)
        return dataclasses.replace(self, records=chosen, lengths=self.lengths[indices], length=length or self.length)

    def first(self, limit: int) -> Self:
        """Return the first examples; all of them if the limit is 0."""
        return self.select(np.arange(min(limit or len(self), len(self))))

    def buckets(self, bounds: Sequence[int]) -> list[Self]:
        """Return the examples in groups by length, none empty; each is padded to its bound, the last to `length`."""
        ends = bucket_ends(bounds, self.length)
        number = np.searchsorted(ends, self.lengths)
        groups = [(np.flatnonzero(number == i), end) for i, end in enumerate(ends)]
        return [self.select(indices, end) for indices, end in groups if indices.size]


def sequences(
    columns: Mapping[str, Sequence[np.ndarray]],
    targets: Mapping[str, np.ndarray],
    padding_id: int = 0,
    limit: int | None = None,
) -> Padded:
    """Return sequences in memory as examples.

    Args:
        columns: by name an array `[tokens]` of every example, `input_ids` among them.
        targets: by name `[examples]`.
        padding_id: id of padding in `input_ids`; other columns are padded with 0.
        limit: greatest length that rounding up may give (a model's positions); None for no limit.
    """
    count = len(columns["input_ids"])
    records = [
        {name: column[i] for name, column in columns.items()} | {name: one[i : i + 1] for name, one in targets.items()}
        for i in range(count)
    ]
    lengths = np.asarray([len(ids) for ids in columns["input_ids"]], np.int64)
    pad = functools.partial(pad_sequence, padding_id=padding_id, targets=tuple(targets))
    return Padded(records, lengths, rounded_length(lengths, limit), pad)


def pad_sequence(record: Record, length: int, *, padding_id: int, targets: Sequence[str]) -> dict[str, np.ndarray]:
    """Return a record of one sequence as an example, with an `attention_mask` that is 0 at padding.

    Args:
        record: the columns `[tokens]`, `input_ids` among them, and the targets `[1]`.
        length: number of tokens of the example.
        padding_id: id of padding in `input_ids`; other columns are padded with 0.
        targets: names of the targets.
    """
    columns = {name: array for name, array in record.items() if name not in targets}
    example = {name: padded(array, length, padding_id * (name == "input_ids")) for name, array in columns.items()}
    example["attention_mask"] = padded(np.ones(len(record["input_ids"])), length)
    return example | {name: record[name][0] for name in targets}


def padded(array: np.ndarray, length: int, fill: int = 0) -> np.ndarray:
    """Return `[tokens]` as int32 `[length]`."""
    row = np.full(length, fill, np.int32)
    row[: len(array)] = array
    return row


def rounded_length(lengths: np.ndarray, limit: int | None = None) -> int:
    """Return the longest length, rounded up to a multiple of `MULTIPLE`, but not above the limit."""
    longest = int(lengths.max(initial=1))
    rounded = -(-longest // MULTIPLE) * MULTIPLE
    return rounded if limit is None else max(min(rounded, limit), longest)


def bucket_ends(bounds: Sequence[int], length: int) -> list[int]:
    """Return the bounds below `length`, and `length`, ascending."""
    return sorted({bound for bound in bounds if bound < length} | {length})


class TokenBlocks:
    """One long text as examples `{"input_ids": int32 [length]}`: consecutive blocks, the incomplete last one left out.

    Args:
        tokens: `[tokens]` integers.
        length: number of tokens of an example.

    Raises:
        DataError: a text shorter than one block.
    """

    def __init__(self, tokens: np.ndarray, length: int) -> None:
        require(length >= 2, "length", f"must be at least 2 (a token and its successor), got {length}")
        if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
            raise DataError(f"tokens: expected integers [tokens], got {tokens.dtype} {list(tokens.shape)}")
        if len(tokens) < length:
            raise DataError(f"length: the text has {len(tokens)} tokens, less than one block of {length}")
        blocks = len(tokens) // length
        self.tokens = tokens[: blocks * length].astype(np.int32).reshape(blocks, length)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"input_ids": self.tokens[index]}
