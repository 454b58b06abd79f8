"""The forms of texts and pairs of texts with classes, several labels, numbers, similarities, or tags of words."""

from __future__ import annotations

import dataclasses
import itertools
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from headjax.core.class_names import IGNORED, is_missing, label_name
from headjax.core.errors import DataError
from headjax.core.fields import Positive
from headjax.core.serialize import kind
from headjax.data.examples import Record, encode_packed, encode_sequences, padded
from headjax.data.forms.form import MISSING, Encoded, Seed, SequenceForm, text, text_counts
from headjax.data.rows import Row, Split
from headjax.tokenizers.tokenizer import Tokenizer


@kind("labelled")
@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledForm(SequenceForm):
    """`text`, maybe `second`, and `label`: `[CLS] text [SEP] second [SEP]` with a class or a number.

    A label is a class's name or its number; in a regression, a finite number. Rows without one are left out.

    Attributes:
        pairs: whether rows have a `second` text, which may be blank.
        classes: names in the order of the class numbers; empty for a regression.
        scale: divisor of the numbers of a regression.
    """

    fields: ClassVar = {"text": "text", "second": "text", "label": "label"}
    measure: ClassVar = "classes"

    pairs: bool = False
    classes: tuple[str, ...] = ()
    scale: Positive = 1.0

    @property
    def wanted(self) -> Mapping[str, str]:
        return {name: what for name, what in self.fields.items() if self.pairs or name != "second"}

    def encode(self, tokenizer: Tokenizer, rows: Sequence[Row], split: Split, seed: Seed) -> Encoded:
        kept = [row for row in rows if self.has_label(row.values["label"])]
        first = [text(row, "text") for row in kept]
        second = [str(row.values["second"]) for row in kept] if self.pairs else None  # blank in two pairs of QQP
        columns = encode_sequences(tokenizer, first, second, max_length=self.length)
        records: list[Record] = [
            {"input_ids": ids, "token_type_ids": types.astype(np.uint8), "labels": self.target(row)}
            for ids, types, row in zip(*columns.values(), kept, strict=True)
        ]
        return _encoded(records, [*first, *(second or ())], rows)

    def has_label(self, label: Any) -> bool:
        known = bool(self.classes) and isinstance(label, str) and self.index.find(label.strip()) is not None
        return known or not is_missing(label, numbers=not self.classes)

    def target(self, row: Row) -> np.ndarray:
        """Return the label as `[1]`: int32 of a class, float32 of a number."""
        if self.classes:
            return np.asarray([self.number(row.values["label"], row.place)], np.int32)
        return np.asarray([finite(row.place, row.values["label"]) / self.scale], np.float32)

    def labels_of(self, row: Row) -> tuple[str, ...]:
        return (label_name(row.values["label"]),)


@kind("several_labels")
@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiLabelForm(LabelledForm):
    """`text`, maybe `second`, and `label`: the names of all classes that hold, none for an empty label.

    Labels are float32 `[classes]`, 1 for a class that holds and 0 for others. In a table several names stand in one
    cell, divided by white space; JSON and Parquet may have lists.
    """

    fields: ClassVar = {"text": "text", "second": "text", "label": "texts"}
    measure: ClassVar = "several_labels"

    def has_label(self, label: Any) -> bool:
        return True

    def target(self, row: Row) -> np.ndarray:
        labels = np.zeros((1, len(self.classes)), np.float32)
        labels[0, [self.number(label, row.place) for label in row.values["label"]]] = 1.0
        return labels

    def labels_of(self, row: Row) -> tuple[str, ...]:
        return tuple(map(label_name, row.values["label"]))


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
    measure: ClassVar = "similarities"

    scale: Positive = 1.0
    prompts: tuple[str, str] = ("", "")
    include_prompt: bool = True

    @property
    def limit(self) -> int:
        return 2 * self.length

    def encode(self, tokenizer: Tokenizer, rows: Sequence[Row], split: Split, seed: Seed) -> Encoded:
        first, second, label = self.fields
        # No score from 0 to a scale of 5 is -1, which then is no label.
        kept = [row for row in rows if not is_missing(row.values[label], numbers=self.scale == 1.0)]
        texts = [[text(row, name) for row in kept] for name in (first, second)]
        columns = self.packed(tokenizer, *texts)
        records: list[Record] = []
        for number, row in enumerate(kept):
            score = np.asarray([finite(row.place, row.values[label]) / self.scale], np.float32)
            record = {name: column[number] for name, column in columns.items()}
            records.append(record | {"labels": score} | self.more(row))
        return _encoded(records, [*texts[0], *texts[1]], rows)

    def packed(self, tokenizer: Tokenizer, first: Sequence[str], second: Sequence[str]) -> Mapping[str, Any]:
        """Return the arrays of pairs by column."""
        reading: dict[str, Any] = {"prompts": self.prompts, "pooled": self.include_prompt, "max_length": self.length}
        return encode_packed(tokenizer, first, second, **reading)

    def more(self, row: Row) -> dict[str, np.ndarray]:
        return {}


@kind("single_texts")
@dataclasses.dataclass(frozen=True, kw_only=True)
class TextsForm(SimilarityForm):
    """`text`: texts without labels, of which two stand in an example; of an odd number the first one stands twice."""

    fields: ClassVar = {"text": "text"}

    def encode(self, tokenizer: Tokenizer, rows: Sequence[Row], split: Split, seed: Seed) -> Encoded:
        texts, none = [text(row, "text") for row in rows], np.full(1, np.nan, np.float32)
        columns = self.packed(tokenizer, texts[::2], [*texts[1::2], *texts[: len(texts) % 2]])
        examples = range(len(columns["input_ids"]))
        records: list[Record] = [
            {name: column[number] for name, column in columns.items()} | {"labels": none} for number in examples
        ]
        return Encoded(records, text_counts(texts, sum(len(record["input_ids"]) for record in records)))


@kind("retrieval")
@dataclasses.dataclass(frozen=True, kw_only=True)
class RetrievalForm(SimilarityForm):
    """`query`, `text` and `relevance`: a candidate of a query a row, ranked by the cosine of both embeddings.

    Examples are those of `SimilarityForm`, with the query's number as `query`. Training learns the relevance, divided
    by `scale`, as the cosine.
    """

    fields: ClassVar = {"query": "text", "text": "text", "relevance": "number"}
    targets: ClassVar = ("labels", "query")
    measure: ClassVar = "ranking"

    def more(self, row: Row) -> dict[str, np.ndarray]:
        return {"query": np.asarray([zlib.crc32(row.values["query"].encode()) >> 1], np.int32)}


@kind("tagged_words")
@dataclasses.dataclass(frozen=True, kw_only=True)
class TagForm(SequenceForm):
    """`tokens`, the words of a sentence, and `tags`, one a word.

    A word's first piece carries its tag; pieces after the first, and special tokens, are neither learned nor judged
    (-100).

    Attributes:
        classes: tags in the order of their numbers.
    """

    fields: ClassVar = {"tokens": "texts", "tags": "texts"}
    columns: ClassVar = ("input_ids", "token_type_ids", "labels")
    targets: ClassVar = ()
    measure: ClassVar = "entities"

    classes: tuple[str, ...] = ()

    def labels_of(self, row: Row) -> tuple[str, ...]:
        return tuple(row.values["tags"])

    def encode(self, tokenizer: Tokenizer, rows: Sequence[Row], split: Split, seed: Seed) -> Encoded:
        words_of = [list(row.values["tokens"]) for row in rows]
        for row, words in zip(rows, words_of, strict=True):
            if len(words) != (tags := len(row.values["tags"])) or not words:
                raise DataError(f"{row.place}: {len(words)} words with {tags} tags")
        cut = {"max_length": self.length, "direction": tokenizer.truncation_side}
        encoded = tokenizer.encodings(words_of, cut, is_pretokenized=True)
        records: list[Record] = []
        for row, encoding in zip(rows, encoded, strict=True):
            numbers, places = [self.number(tag, row.place) for tag in row.values["tags"]], encoding.word_ids
            labels = [
                IGNORED if word is None or word == before else numbers[word]
                for before, word in itertools.pairwise([None, *places])
            ]
            columns = zip(self.columns, (encoding.ids, tokenizer.types(encoding), labels), strict=True)
            records.append({name: np.asarray(column, np.int32) for name, column in columns})
        return Encoded(records, {"words": sum(map(len, words_of)), "tokens": sum(map(self.tokens, records))})

    def pad(self, record: Record, length: int, padding_id: int) -> dict[str, np.ndarray]:
        return super().pad(record, length, padding_id) | {"labels": padded(record["labels"], length, IGNORED)}


def _encoded(records: Sequence[Record], texts: Sequence[str], rows: Sequence[Row]) -> Encoded:
    """Return the records of the rows that have a label with their counts."""
    counts = text_counts(texts, sum(len(record["input_ids"]) for record in records))
    left_out = len(rows) - len(records)
    return Encoded(records, counts | ({MISSING: left_out} if left_out else {}))


def finite(place: str, value: Any) -> float:
    """Return a label as a finite number."""
    try:
        number = float(value)
    except ValueError:
        raise DataError(f"{place}: the label {value!r} is not a number") from None
    if not math.isfinite(number):
        raise DataError(f"{place}: the label {value!r} is not finite")
    return number
