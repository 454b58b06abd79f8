"""Base of the forms: a form encodes rows as records, makes examples of records, and names their measure."""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from headjax.core.errors import DataError
from headjax.core.fields import Checked
from headjax.data.examples import Padded, Record, Records, Source, pad_sequence, padding_id, rounded_length
from headjax.data.rows import Row, Split
from headjax.data.task import MeasureSpec
from headjax.tokenizers.tokenizer import Tokenizer

Seed = tuple[int, ...]

MISSING = "missing_labels"
"""Name of the count of rows without a label, which are left out; counts without it have none."""


class Encoded(NamedTuple):
    """Rows as records."""

    records: Records
    counts: Mapping[str, int]
    fingerprint: str = ""


@dataclasses.dataclass(frozen=True)
class Form(Checked, abc.ABC):
    """Base of the forms. A task is encoded by its form alone, in memory and on disk.

    The fields of a form stand in the manifest of prepared shards, so that shards are read as they were written. A field
    added later changes the fingerprint of every folder prepared before: give such a choice to the reader instead.
    """

    fields: ClassVar[Mapping[str, str]] = {}
    """Types of the rows' fields by name: `text`, `texts`, `integer`, `number`, `label` or `image`."""

    reads_text: ClassVar[bool] = True
    """Whether the rows have text, so that a tokenizer is needed."""

    @property
    def wanted(self) -> Mapping[str, str]:
        """The fields that every row must have, with their types."""
        return self.fields

    @property
    @abc.abstractmethod
    def limit(self) -> int:
        """Greatest number of tokens of a record, see `tokens`."""

    @property
    def label_names(self) -> tuple[str, ...]:
        """The classes in the order of their numbers; empty if labels are not classes."""
        return ()

    def labels_of(self, row: Row) -> tuple[str, ...]:
        """Return the names of the classes in a row, from which a form without classes learns them."""
        return ()

    @property
    def divided_by(self) -> str:
        """The field by whose hash rows are held out where no file is named for validation."""
        return next(iter(self.fields))

    def check(self, tokenizer: Tokenizer | None) -> None:
        """Raise `DataError` if the tokenizer lacks a special token that the form needs."""

    def texts(self, row: Row) -> Iterable[str]:
        """Return a row's texts, to learn a vocabulary from."""
        return [row.values[name] for name, what in self.fields.items() if what == "text" and name in row.values]

    @abc.abstractmethod
    def encode(self, tokenizer: Tokenizer | None, rows: Sequence[Row], split: Split, seed: Seed) -> Encoded:
        """Return the records of some rows, a function of the arguments alone."""

    @abc.abstractmethod
    def tokens(self, record: Record) -> int:
        """Return the number of tokens of a record on its longer side; 1 for records without tokens."""

    @abc.abstractmethod
    def examples(self, tokenizer: Tokenizer | None, records: Records, sizes: np.ndarray, split: Split) -> Source:
        """Return records as examples, each made when it is read."""

    def measured(self, metrics: Sequence[str], counts: Mapping[str, Any], held: Source) -> MeasureSpec | None:
        """Return the measure of examples to evaluate on; None for the loss alone."""
        return None

    def nothing(self, split: Split, counts: Mapping[str, int], place: str) -> str:
        """Return the error message for rows, starting at a place, that gave no record."""
        return f"{place}: the split {split} has no {'labels' if MISSING in counts else 'examples'}"


@dataclasses.dataclass(frozen=True)
class SequenceForm(Form):
    """Base of the forms whose records are one sequence each: columns `[tokens]`, `input_ids` first, and targets `[1]`.

    Examples hold the columns padded to one length, an `attention_mask` that is 0 at padding, and the targets.
    """

    columns: ClassVar[tuple[str, ...]] = ("input_ids", "token_type_ids")
    targets: ClassVar[tuple[str, ...]] = ("labels",)

    def tokens(self, record: Record) -> int:
        return len(record["input_ids"])

    def examples(self, tokenizer: Tokenizer | None, records: Records, sizes: np.ndarray, split: Split) -> Source:
        return self.padded(tokenizer, records, sizes)

    def padded(self, tokenizer: Tokenizer | None, records: Records, sizes: np.ndarray) -> Padded:
        """Return records as examples that are padded when they are read."""
        pad = functools.partial(self.pad, padding_id=padding_id(tokenizer_of(tokenizer)))
        return Padded(records, sizes, rounded_length(sizes, self.limit), pad)

    def pad(self, record: Record, length: int, padding_id: int) -> dict[str, np.ndarray]:
        """Return a record as an example of a length."""
        known = {name: record[name] for name in (*self.columns, *self.targets) if name in record}
        return pad_sequence(known, length, padding_id=padding_id, targets=self.targets)

    def fingerprint(self, records: Sequence[Record]) -> str:
        """Return the hash of the columns and targets, 16 hexadecimal digits."""
        columns, targets = (
            {name: [record[name] for record in records if name in record] for name in names}
            for names in (self.columns, self.targets)
        )
        return sequences_hash(columns, targets)


def sequences_hash(columns: Mapping[str, Sequence[np.ndarray]], targets: Mapping[str, Sequence[np.ndarray]]) -> str:
    """Return the hash of sequences, 16 hexadecimal digits. Checkpoints hold it: it must never change."""
    digest = hashlib.sha256(np.asarray([len(ids) for ids in columns["input_ids"]], np.int64).tobytes())
    for name in sorted(columns):
        for array in columns[name]:
            digest.update(array.astype(np.int32).tobytes())
    for name in sorted(targets):
        for array in targets[name]:
            digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def text(row: Row, name: str) -> str:
    """Return a field of a row that must be text."""
    value = row.values[name]
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{row.place}: {name} is {'blank' if isinstance(value, str) else repr(value)}")
    return value


def text_counts(texts: Sequence[str], tokens: int) -> dict[str, int]:
    """Return the numbers of words and bytes of texts, and of the tokens they were encoded as."""
    return {
        "tokens": tokens,
        "words": sum(len(one.split()) for one in texts),
        "bytes": sum(len(one.encode()) for one in texts),
    }


def tokenizer_of(tokenizer: Tokenizer | None) -> Tokenizer:
    """Return the tokenizer of a form that reads text."""
    if tokenizer is None:
        raise DataError("tokenizer: text needs one")
    return tokenizer


def language_measure(counts: Mapping[str, Any]) -> MeasureSpec:
    """Return the measure of text: perplexity per token, word and byte."""
    ratios = ("words_per_token", "bytes_per_token")
    return MeasureSpec("language_modelling", {name: counts[name] for name in ratios if name in counts})
