"""The form of text for language models: one stream cut into blocks, or whole documents packed into rows."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from headjax.core.errors import require
from headjax.core.serialize import kind
from headjax.data.examples import Record, Records, Source, TokenBlocks, padded
from headjax.data.forms.form import Encoded, Form, Seed, language_measure, text_counts, tokenizer_of
from headjax.data.forms.packing import pack, segments
from headjax.data.rows import Split, TaskRow
from headjax.data.task import Measured
from headjax.models.outputs import IGNORED
from headjax.tokenizers.tokenizer import Tokenizer


@kind("language_model_rows")
@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageForm(Form):
    """`text` of documents.

    Streamed, documents follow one another, each ended by the end-of-text token, and are cut into blocks; a block's
    tokens see all before them in it, of whatever document (GPT-2). Packed, a row holds whole documents that do not see
    each other (`segment_ids`), each counting its positions from 0 and between two end-of-text tokens, so that its first
    token is predicted too; a document longer than a row goes on in the next, which repeats one token.

    Attributes:
        length: tokens of an example.
        packed: whether documents are kept apart.
    """

    fields: ClassVar = {"text": "text"}

    length: int = 128
    packed: bool = False

    def __post_init__(self) -> None:
        require(self.length >= 2, "length", f"must be at least 2 (a token and its successor), got {self.length}")

    def check(self, tokenizer: Tokenizer | None) -> None:
        tokenizer_of(tokenizer).special_id("eos_token")

    def encode(self, tokenizer: Tokenizer | None, rows: Sequence[TaskRow], split: Split, seed: Seed) -> Encoded:
        tokenizer = tokenizer_of(tokenizer)
        texts = [row.values["text"] for row in rows if row.values["text"].strip()]
        encoded = tokenizer.encode(texts)
        end = np.asarray([tokenizer.special_id("eos_token")], np.int32)
        counts = text_counts(texts, sum(len(ids) + 1 for ids in encoded)) | {"documents": len(texts)}
        if self.packed:
            return Encoded(self._packed(encoded, end), counts)
        tokens = np.concatenate([np.zeros(0, np.int32), *(part for ids in encoded for part in (ids, end))])
        blocks: Records = TokenBlocks(tokens, self.length) if len(tokens) >= self.length else []
        return Encoded(blocks, counts, hashlib.sha256(tokens.tobytes()).hexdigest()[:16])

    def _packed(self, encoded: Sequence[np.ndarray], end: np.ndarray) -> list[Record]:
        pieces: list[np.ndarray] = []
        for ids in encoded:
            document = np.concatenate([end, ids, end])
            starts = range(0, len(document) - 1, self.length - 1)
            pieces.extend(document[start : start + self.length] for start in starts)
        sizes = np.asarray([len(piece) for piece in pieces]).reshape(-1, 1)
        return [
            {
                "input_ids": np.concatenate([pieces[number] for number in row]),
                "lengths": np.asarray([len(pieces[number]) for number in row], np.int32),
            }
            for row in pack(sizes, self.length)
        ]

    def tokens(self, record: Record) -> int:
        return len(record["input_ids"])

    def examples(self, tokenizer: Tokenizer | None, records: Records, sizes: np.ndarray, split: Split) -> Source:
        return PackedDocuments(records, self.length) if self.packed else records

    def measured(self, metrics: Sequence[str], counts: Mapping[str, Any], held: Source) -> Measured | None:
        return language_measure(counts)

    def nothing(self, split: Split, counts: Mapping[str, int], place: str) -> str:
        too_little = f"the {split} text has {counts['tokens']} tokens, less than one block of {self.length}"
        return f"length: {too_little}; lower length or give more text"


@dataclasses.dataclass(frozen=True)
class PackedDocuments:
    """Packed rows as examples.

    A row's `labels` are its tokens, but -100 at the first of each document and at padding.

    Attributes:
        records: the records.
        length: tokens of an example.
    """

    records: Records
    length: int

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        record = self.records[index]
        segment_ids, position_ids = segments(record["lengths"], self.length)
        ids = padded(record["input_ids"], self.length)
        return {
            "input_ids": ids,
            "segment_ids": segment_ids,
            "position_ids": position_ids,
            "attention_mask": (segment_ids > 0).astype(np.int32),
            "labels": np.where(position_ids > 0, ids, np.int32(IGNORED)),
        }
