"""Labelled sentences and pairs of sentences, prepared."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from headjax.core.errors import DataError, require_positive
from headjax.core.serialize import kind, unknown_name
from headjax.data.encoding import encode_sequences, padding_id
from headjax.data.prepared.form import Encoded, Form, Record, Records, Seed, Split, text, text_counts, tokenizer_of
from headjax.data.prepared.padded import PaddedRecords
from headjax.data.prepared.rows import TaskRow
from headjax.data.ragged import RaggedRows
from headjax.data.task import Source
from headjax.tokenizers.tokenizer import Tokenizer

COLUMNS = ("input_ids", "token_type_ids")


@kind("labelled")
@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledForm(Form):
    """`text`, maybe `second`, and `label`: `[CLS] text [SEP] second [SEP]` with a class or a number.

    A label is a class's name or its number; of a regression, a finite number.

    Attributes:
        length: most tokens of an example; what is longer is cut.
        pairs: whether there is a `second`.
        classes: names in the order of the class numbers; empty for a regression.
    """

    fields: ClassVar = {"text": "text", "second": "text", "label": "label"}

    length: int = 128
    pairs: bool = False
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_positive(self, "length")

    @property
    def label_names(self) -> tuple[str, ...]:
        return self.classes

    def encode(self, tokenizer: Tokenizer | None, rows: Sequence[TaskRow], split: Split, seed: Seed) -> Encoded:
        first = [text(row, "text") for row in rows]
        second = [text(row, "second") for row in rows] if self.pairs else None
        encoded = encode_sequences(tokenizer_of(tokenizer), first, second, max_length=self.length)
        records: list[Record] = [
            {"input_ids": ids, "token_type_ids": types.astype(np.uint8), "labels": self.target(row)}
            for ids, types, row in zip(encoded.ids, encoded.types, rows, strict=True)
        ]
        return Encoded(records, text_counts([*first, *(second or ())], sum(map(len, encoded.ids))))

    def target(self, row: TaskRow) -> np.ndarray:
        """The label as `[1]`, int32 of a class or float32.

        Raises:
            DataError: neither a class nor its number, or no finite number.
        """
        value = row.values["label"]
        if not self.classes:
            return np.asarray([finite(row.place, value)], np.float32)
        names = {name: number for number, name in enumerate(self.classes)}
        if value in names:
            return np.asarray([names[value]], np.int32)
        if not isinstance(value, str) and 0 <= int(value) < len(names):
            return np.asarray([value], np.int32)
        raise DataError(f"{row.place}: {unknown_name('label', str(value), names)}")

    def tokens(self, record: Record) -> int:
        return len(record["input_ids"])

    def train(self, tokenizer: Tokenizer | None, records: Records, sizes: np.ndarray) -> Source:
        fill = padding_id(tokenizer_of(tokenizer))
        return PaddedRecords(records, sizes, fill, COLUMNS, ("labels",), self.length)

    def validation(self, tokenizer: Tokenizer | None, records: Sequence[Record]) -> Source:
        columns = {name: [record[name].astype(np.int32) for record in records] for name in COLUMNS}
        labels = np.concatenate([record["labels"] for record in records])
        return RaggedRows(columns, {"labels": labels}, padding_id(tokenizer_of(tokenizer)), limit=self.length)


def finite(place: str, value: Any) -> float:
    """A label as a finite number.

    Raises:
        DataError: it is none.
    """
    try:
        found = float(value)
    except ValueError:
        raise DataError(f"{place}: the label {value!r} is not a number") from None
    if not math.isfinite(found):
        raise DataError(f"{place}: the label {value!r} is not finite")
    return found
