"""How the rows of a task become examples: once into records on disk, and from those into padded examples."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from headjax.core.errors import DataError
from headjax.data.prepared.rows import TaskRow
from headjax.data.task import Source
from headjax.tokenizers.tokenizer import Tokenizer

Split = Literal["train", "validation"]
Seed = tuple[int, ...]
Record = Mapping[str, np.ndarray]
"""What is stored of an example, without padding: arrays of at least one axis by name."""


class Encoded(NamedTuple):
    """Rows as records.

    Attributes:
        records: the records.
        counts: numbers that add up over shards (`tokens`, `words`, ...).
    """

    records: list[Record]
    counts: Mapping[str, int]


class Records(Protocol):
    """Records by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Record: ...


@dataclasses.dataclass(frozen=True)
class Form(abc.ABC):
    """Base of the forms. What a form holds stands in the manifest, so that shards are read as they were written."""

    fields: ClassVar[Mapping[str, str]] = {}
    """What rows hold, by name: `text`, `texts`, `integer`, `number`, `label` or `image`."""

    reads_text: ClassVar[bool] = True
    """Whether there is anything to tokenise."""

    @property
    def label_names(self) -> tuple[str, ...]:
        """The classes in the order of their numbers; none where labels are no classes."""
        return ()

    def check(self, tokenizer: Tokenizer | None) -> None:
        """Raises `DataError` where the tokenizer lacks what the form needs."""

    def texts(self, row: TaskRow) -> Iterable[str]:
        """What a vocabulary is learned from."""
        return [row.values[name] for name, what in self.fields.items() if what == "text" and name in row.values]

    @abc.abstractmethod
    def encode(self, tokenizer: Tokenizer | None, rows: Sequence[TaskRow], split: Split, seed: Seed) -> Encoded:
        """The records of some rows, a function of the arguments alone.

        Args:
            tokenizer: of the text.
            rows: the rows of one shard.
            split: which split they are of.
            seed: of what is drawn at random.

        Raises:
            DataError: a row that cannot be used; the message starts with its place.
        """

    @abc.abstractmethod
    def tokens(self, record: Record) -> int:
        """Tokens of a record on its longer side; 1 where there are none."""

    @abc.abstractmethod
    def train(self, tokenizer: Tokenizer | None, records: Records, sizes: np.ndarray) -> Source:
        """Stored records as examples to train on, read when they are asked for.

        Args:
            tokenizer: of the text.
            records: the records.
            sizes: `[records]` their sizes.
        """

    @abc.abstractmethod
    def validation(self, tokenizer: Tokenizer | None, records: Sequence[Record]) -> Source:
        """Records in memory as examples to evaluate on."""


def text(row: TaskRow, name: str) -> str:
    """A field of a row that must be text.

    Raises:
        DataError: it is not, or it is blank.
    """
    value = row.values[name]
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{row.place}: {name} is {'blank' if isinstance(value, str) else repr(value)}")
    return value


def text_counts(texts: Sequence[str], tokens: int) -> dict[str, int]:
    """Words and bytes of texts and the tokens that they became."""
    return {
        "tokens": tokens,
        "words": sum(len(one.split()) for one in texts),
        "bytes": sum(len(one.encode()) for one in texts),
    }


def padded(array: np.ndarray, length: int, fill: int = 0) -> np.ndarray:
    """`[tokens]` as int32 `[length]`."""
    row = np.full(length, fill, np.int32)
    row[: len(array)] = array
    return row


def tokenizer_of(tokenizer: Tokenizer | None) -> Tokenizer:
    """The tokenizer of a form that reads text.

    Raises:
        DataError: there is none.
    """
    if tokenizer is None:
        raise DataError("tokenizer: text needs one")
    return tokenizer
