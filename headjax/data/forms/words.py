"""The form of words with tags: named entities, parts of speech."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from headjax.core.class_names import IGNORED, ClassIndex
from headjax.core.errors import DataError
from headjax.core.fields import Size
from headjax.core.serialize import kind
from headjax.data.examples import Record, Source, changeable, padded
from headjax.data.forms.form import Encoded, Seed, SequenceForm, tokenizer_of
from headjax.data.forms.labelled import class_number
from headjax.data.rows import Row, Split
from headjax.data.task import MeasureSpec
from headjax.tokenizers.tokenizer import CANNOT_READ, Tokenizer, library_errors


@kind("tagged_words")
@dataclasses.dataclass(frozen=True, kw_only=True)
class TagForm(SequenceForm):
    """`tokens`, the words of a sentence, and `tags`, one a word.

    A word's first piece carries its tag; pieces after the first, and special tokens, are neither learned nor judged
    (-100). Words beyond `length` tokens are cut off.

    Attributes:
        length: greatest number of tokens of an example.
        classes: tags in the order of their numbers.
    """

    fields: ClassVar = {"tokens": "texts", "tags": "texts"}
    columns: ClassVar = ("input_ids", "token_type_ids", "labels")
    targets: ClassVar = ()

    length: Size = 128
    classes: tuple[str, ...] = ()

    @property
    def limit(self) -> int:
        return self.length

    @property
    def label_names(self) -> tuple[str, ...]:
        return self.classes

    def labels_of(self, row: Row) -> tuple[str, ...]:
        return tuple(row.values["tags"])

    @functools.cached_property
    def _index(self) -> ClassIndex:
        return ClassIndex(self.classes)

    def encode(self, tokenizer: Tokenizer | None, rows: Sequence[Row], split: Split, seed: Seed) -> Encoded:
        backend = changeable(tokenizer_of(tokenizer))
        backend.enable_truncation(self.length)
        for row in rows:
            words, tags = len(row.values["tokens"]), len(row.values["tags"])
            if words != tags or not words:
                raise DataError(f"{row.place}: {words} words with {tags} tags")
        with library_errors(CANNOT_READ):
            encoded = backend.encode_batch([list(row.values["tokens"]) for row in rows], is_pretokenized=True)
        records = [self._record(row, one) for row, one in zip(rows, encoded, strict=True)]
        words = sum(len(row.values["tokens"]) for row in rows)
        counts = {"words": words, "tokens": sum(map(self.tokens, records))}
        return Encoded(records, counts, self.fingerprint(records))

    def _record(self, row: Row, encoded: Any) -> Record:
        labels, before = [], None
        for word in encoded.word_ids:
            first = word is not None and word != before
            labels.append(class_number(row.values["tags"][word], self._index, row.place) if first else IGNORED)
            before = word
        return {
            "input_ids": np.asarray(encoded.ids, np.int32),
            "token_type_ids": np.asarray(encoded.type_ids, np.int32),
            "labels": np.asarray(labels, np.int32),
        }

    def pad(self, record: Record, length: int, padding_id: int) -> dict[str, np.ndarray]:
        return super().pad(record, length, padding_id) | {"labels": padded(record["labels"], length, IGNORED)}

    def measured(self, metrics: Sequence[str], counts: Mapping[str, Any], held: Source) -> MeasureSpec | None:
        return MeasureSpec("entities", {"names": self.classes})
