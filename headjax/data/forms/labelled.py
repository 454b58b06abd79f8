"""The forms of sentences and pairs of sentences with labels."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from headjax.core.class_names import ClassIndex, is_missing
from headjax.core.errors import DataError
from headjax.core.fields import Size, unknown_name
from headjax.core.serialize import kind
from headjax.data.examples import Record, Source, encode_packed, encode_sequences
from headjax.data.forms.form import MISSING, Encoded, Seed, SequenceForm, text, text_counts, tokenizer_of
from headjax.data.rows import Row, Split
from headjax.data.task import MeasureSpec
from headjax.tokenizers.tokenizer import Tokenizer

CLASS_METRICS = ("accuracy", "macro_f1", "matthews")
"""Metrics of classes if a task names none."""

NO_CLASS = -1
"""Class number of rows without a label, as `datasets` has it."""

SHOWN_CLASSES = 100
"""Greatest number of classes that the error of an unknown label lists."""


@kind("labelled")
@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledForm(SequenceForm):
    """`text`, maybe `second`, and `label`: `[CLS] text [SEP] second [SEP]` with a class or a number.

    A label is a class's name or its number; in a regression, a finite number. Rows without one are left out.

    Attributes:
        length: greatest number of tokens of an example; longer ones are cut.
        pairs: whether rows have a `second` text, which may be blank.
        classes: names in the order of the class numbers; empty for a regression.
    """

    fields: ClassVar = {"text": "text", "second": "text", "label": "label"}

    length: Size = 128
    pairs: bool = False
    classes: tuple[str, ...] = ()

    @property
    def wanted(self) -> Mapping[str, str]:
        return {name: what for name, what in self.fields.items() if self.pairs or name != "second"}

    @property
    def limit(self) -> int:
        return self.length

    @property
    def label_names(self) -> tuple[str, ...]:
        return self.classes

    def encode(self, tokenizer: Tokenizer | None, rows: Sequence[Row], split: Split, seed: Seed) -> Encoded:
        rows, missing = with_labels(rows, self._index if self.classes else None)
        first = [text(row, "text") for row in rows]
        second = [str(row.values["second"]) for row in rows] if self.pairs else None  # blank in two pairs of QQP
        encoded = encode_sequences(tokenizer_of(tokenizer), first, second, max_length=self.length)
        records: list[Record] = [
            {"input_ids": ids, "token_type_ids": types.astype(np.uint8), "labels": self.target(row)}
            for ids, types, row in zip(encoded.ids, encoded.types, rows, strict=True)
        ]
        counts = text_counts([*first, *(second or ())], sum(map(len, encoded.ids))) | missing
        return Encoded(records, counts, self.fingerprint(records))

    def target(self, row: Row) -> np.ndarray:
        """Return the label as `[1]`: int32 of a class, float32 of a number."""
        if self.classes:
            return class_label(row, self._index)
        return np.asarray([finite(row.place, row.values["label"])], np.float32)

    @functools.cached_property
    def _index(self) -> ClassIndex:
        return ClassIndex(self.classes)

    def measured(self, metrics: Sequence[str], counts: Mapping[str, Any], held: Source) -> MeasureSpec | None:
        if self.classes:
            return class_measure(metrics, self.classes)
        return MeasureSpec("numbers", {"headline": metrics[0], "chosen": tuple(metrics)} if metrics else {})


@kind("similarities")
@dataclasses.dataclass(frozen=True, kw_only=True)
class SimilarityForm(SequenceForm):
    """`text`, `second` and `label`, their similarity, for models that embed each text by itself.

    Both texts of a pair stand in one example, kept apart by `segment_ids` (1 and 2, 0 at padding); the `position_ids`
    of each start at 0. Rows without a label are left out.

    Attributes:
        length: greatest number of tokens of one text; longer ones are cut.
    """

    fields: ClassVar = {"text": "text", "second": "text", "label": "number"}
    columns: ClassVar = ("input_ids", "segment_ids", "position_ids")

    length: Size = 128

    @property
    def limit(self) -> int:
        return 2 * self.length

    def encode(self, tokenizer: Tokenizer | None, rows: Sequence[Row], split: Split, seed: Seed) -> Encoded:
        rows, missing = with_labels(rows)
        first, second = ([text(row, name) for row in rows] for name in ("text", "second"))
        columns = encode_packed(tokenizer_of(tokenizer), first, second, max_length=self.length)
        labels = [np.asarray([finite(row.place, row.values["label"])], np.float32) for row in rows]
        records: list[Record] = [
            {**{name: column[number] for name, column in columns.items()}, "labels": labels[number]}
            for number in range(len(rows))
        ]
        counts = text_counts([*first, *second], sum(map(self.tokens, records))) | missing
        return Encoded(records, counts, self.fingerprint(records))

    def measured(self, metrics: Sequence[str], counts: Mapping[str, Any], held: Source) -> MeasureSpec | None:
        return MeasureSpec("similarities")


def class_measure(metrics: Sequence[str], classes: tuple[str, ...]) -> MeasureSpec:
    """Return the measure of classes: the task's own metrics, or `CLASS_METRICS`."""
    chosen = tuple(metrics) or CLASS_METRICS
    return MeasureSpec("classes", {"headline": chosen[0], "names": classes, "chosen": chosen})


def with_labels(rows: Sequence[Row], index: ClassIndex | None = None) -> tuple[list[Row], dict[str, int]]:
    """Return the rows that have a label, a class of the index or a number, and how many have none, if any."""
    kept = [row for row in rows if not _lacks_label(row.values["label"], index)]
    return kept, {MISSING: len(rows) - len(kept)} if len(kept) < len(rows) else {}


def _lacks_label(label: Any, index: ClassIndex | None) -> bool:
    known = index is not None and isinstance(label, str) and index.find(label.strip()) is not None
    return not known and is_missing(label, numbers=index is None)


def class_label(row: Row, index: ClassIndex) -> np.ndarray:
    """Return the number of the class that a row's label names, or whose number it is, int32 `[1]`."""
    label = row.values["label"]
    number = index.find(label.strip()) if isinstance(label, str) else label
    if number is None or number not in range(len(index.names)):
        count = len(index.names)
        known = index.names if count <= SHOWN_CLASSES else (f"{count} classes",)
        raise DataError(f"{row.place}: {unknown_name('label', str(label), known)}")
    return np.asarray([number], np.int32)


def finite(place: str, value: Any) -> float:
    """Return a label as a finite number."""
    try:
        found = float(value)
    except ValueError:
        raise DataError(f"{place}: the label {value!r} is not a number") from None
    if not math.isfinite(found):
        raise DataError(f"{place}: the label {value!r} is not finite")
    return found
