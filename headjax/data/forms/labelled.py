"""The forms of sentences and pairs of sentences with classes, several labels, numbers or similarities."""

from __future__ import annotations

import dataclasses
import functools
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from headjax.core.class_names import ClassIndex, is_missing, label_name, tell_nothing
from headjax.core.errors import DataError
from headjax.core.fields import Positive, Size, unknown_name
from headjax.core.serialize import kind
from headjax.data.examples import Record, Source, encode_packed, encode_sequences
from headjax.data.forms.form import MISSING, Encoded, Seed, SequenceForm, text, text_counts, tokenizer_of
from headjax.data.rows import Row, Split
from headjax.data.task import MeasureSpec
from headjax.tokenizers.tokenizer import Tokenizer

CLASS_METRICS = ("accuracy", "macro_f1", "matthews")
"""Metrics of classes if a task names none."""

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
        scale: divisor of the numbers of a regression.
    """

    fields: ClassVar = {"text": "text", "second": "text", "label": "label"}

    length: Size = 128
    pairs: bool = False
    classes: tuple[str, ...] = ()
    scale: Positive = 1.0

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
        rows, missing = self.labelled(rows)
        first = [text(row, "text") for row in rows]
        second = [str(row.values["second"]) for row in rows] if self.pairs else None  # blank in two pairs of QQP
        encoded = encode_sequences(tokenizer_of(tokenizer), first, second, max_length=self.length)
        records: list[Record] = [
            {"input_ids": ids, "token_type_ids": types.astype(np.uint8), "labels": self.target(row)}
            for ids, types, row in zip(encoded.ids, encoded.types, rows, strict=True)
        ]
        counts = text_counts([*first, *(second or ())], sum(map(len, encoded.ids))) | missing
        return Encoded(records, counts, self.fingerprint(records))

    def labelled(self, rows: Sequence[Row]) -> tuple[Sequence[Row], dict[str, int]]:
        """Return the rows that have a label, and the count of the others."""
        return with_labels(rows, self._index if self.classes else None)

    def target(self, row: Row) -> np.ndarray:
        """Return the label as `[1]`: int32 of a class, float32 of a number."""
        if self.classes:
            return class_label(row, self._index)
        return np.asarray([finite(row.place, row.values["label"]) / self.scale], np.float32)

    def labels_of(self, row: Row) -> tuple[str, ...]:
        return (label_name(row.values["label"]),)

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
        scale: label of equal texts, the divisor of the labels.
        prompts: what stands before the first and before the second text.
        include_prompt: whether the prompts' tokens are pooled; else there is a `pooling_mask`, 0 at them.
    """

    fields: ClassVar = {"text": "text", "second": "text", "label": "number"}
    columns: ClassVar = ("input_ids", "segment_ids", "position_ids", "pooling_mask")

    length: Size = 128
    scale: Positive = 1.0
    prompts: tuple[str, str] = ("", "")
    include_prompt: bool = True

    @property
    def limit(self) -> int:
        return 2 * self.length

    def encode(self, tokenizer: Tokenizer | None, rows: Sequence[Row], split: Split, seed: Seed) -> Encoded:
        first, second, label = self.fields
        # No score from 0 to a scale of 5 is -1, which then is no label.
        kept, missing = with_labels(rows, field=label, numbers=self.scale == 1.0)
        texts = [[text(row, name) for row in kept] for name in (first, second)]
        reading: dict[str, Any] = {"prompts": self.prompts, "pooled": self.include_prompt, "max_length": self.length}
        columns = encode_packed(tokenizer_of(tokenizer), *texts, **reading)
        records: list[Record] = []
        for number, row in enumerate(kept):
            score = finite(row.place, row.values[label]) / self.scale
            own = {name: column[number] for name, column in columns.items()}
            records.append({**own, "labels": np.asarray([score], np.float32), **self.more(row)})
        counts = text_counts([*texts[0], *texts[1]], sum(map(self.tokens, records))) | missing
        return Encoded(records, counts, self.fingerprint(records))

    def more(self, row: Row) -> dict[str, np.ndarray]:
        """Return further targets of a row."""
        return {}

    def measured(self, metrics: Sequence[str], counts: Mapping[str, Any], held: Source) -> MeasureSpec | None:
        return MeasureSpec("similarities")


@kind("retrieval")
@dataclasses.dataclass(frozen=True, kw_only=True)
class RetrievalForm(SimilarityForm):
    """`query`, `text` and `relevance`: a candidate of a query a row, ranked by the cosine of both embeddings.

    Examples are those of `SimilarityForm`, with the query's number as `query`. Training learns the relevance, divided
    by `scale`, as the cosine.
    """

    fields: ClassVar = {"query": "text", "text": "text", "relevance": "number"}
    targets: ClassVar = ("labels", "query")

    def more(self, row: Row) -> dict[str, np.ndarray]:
        return {"query": np.asarray([zlib.crc32(row.values["query"].encode()) >> 1], np.int32)}

    def measured(self, metrics: Sequence[str], counts: Mapping[str, Any], held: Source) -> MeasureSpec | None:
        return MeasureSpec("ranking")


@kind("several_labels")
@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiLabelForm(LabelledForm):
    """`text`, maybe `second`, and `label`: the names of all classes that hold, none for an empty label.

    Labels are float32 `[classes]`, 1 for a class that holds and 0 for others. In a table several names stand in one
    cell, divided by white space; JSON and Parquet may have lists.
    """

    fields: ClassVar = {"text": "text", "second": "text", "label": "texts"}

    def labelled(self, rows: Sequence[Row]) -> tuple[Sequence[Row], dict[str, int]]:
        return rows, {}

    def target(self, row: Row) -> np.ndarray:
        held = np.zeros((1, len(self.classes)), np.float32)
        for label in row.values["label"]:
            held[0, class_number(label, self._index, row.place)] = 1.0
        return held

    def labels_of(self, row: Row) -> tuple[str, ...]:
        return tuple(map(label_name, row.values["label"]))

    def measured(self, metrics: Sequence[str], counts: Mapping[str, Any], held: Source) -> MeasureSpec | None:
        return MeasureSpec("several_labels", {"names": self.classes})


def class_measure(metrics: Sequence[str], classes: tuple[str, ...]) -> MeasureSpec:
    """Return the measure of classes: the task's own metrics, or `CLASS_METRICS`."""
    chosen = tuple(metrics) or CLASS_METRICS
    return MeasureSpec("classes", {"headline": chosen[0], "names": classes, "chosen": chosen})


def with_labels(
    rows: Sequence[Row], index: ClassIndex | None = None, *, field: str = "label", numbers: bool = True
) -> tuple[list[Row], dict[str, int]]:
    """Return the rows that have a label, a class of the index or a number, and how many have none, if any."""

    def is_there(label: Any) -> bool:
        known = index is not None and isinstance(label, str) and index.find(label.strip()) is not None
        return known or not is_missing(label, numbers=numbers and index is None)

    kept = [row for row in rows if is_there(row.values[field])]
    return kept, {MISSING: len(rows) - len(kept)} if len(kept) < len(rows) else {}


def class_label(row: Row, index: ClassIndex) -> np.ndarray:
    """Return the number of the class that a row's label names, or whose number it is, int32 `[1]`."""
    return np.asarray([class_number(row.values["label"], index, row.place)], np.int32)


def class_number(label: Any, index: ClassIndex, place: str) -> int:
    """Return the number of a class by its name, of classes without names also by `LABEL_2`; a number is itself."""
    found = label
    if isinstance(label, str):
        tried = [label.strip(), label_name(label)]
        if tell_nothing(index.names):
            tried.append(tried[1].casefold().removeprefix("label_"))
        found = next((number for name in tried if (number := index.find(name)) is not None), None)
    if found is None or found not in range(len(index.names)):
        known = index.names if len(index.names) <= SHOWN_CLASSES else (f"{len(index.names)} classes",)
        raise DataError(f"{place}: {unknown_name('label', str(label), known)}")
    return int(found)


def finite(place: str, value: Any) -> float:
    """Return a label as a finite number."""
    try:
        found = float(value)
    except ValueError:
        raise DataError(f"{place}: the label {value!r} is not a number") from None
    if not math.isfinite(found):
        raise DataError(f"{place}: the label {value!r} is not finite")
    return found
