"""Text for language models, prepared: one stream cut into blocks, or whole documents packed into rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from headjax.core.errors import require
from headjax.core.serialize import kind
from headjax.data.prepared.form import Encoded, Form, Record, Records, Seed, Split, padded, text_counts, tokenizer_of
from headjax.data.prepared.packing import pack, segments
from headjax.data.prepared.rows import TaskRow
from headjax.data.task import Source
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
        records = self._packed(encoded, end) if self.packed else self._stream(encoded, end)
        return Encoded(records, text_counts(texts, sum(len(ids) + 1 for ids in encoded)) | {"documents": len(texts)})

    def _stream(self, encoded: Sequence[np.ndarray], end: np.ndarray) -> list[Record]:
        tokens = np.concatenate([part for ids in encoded for part in (ids, end)] or [end])
        blocks = tokens[: len(tokens) // self.length * self.length].reshape(-1, self.length)
        return [{"input_ids": block} for block in blocks]

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

    def train(self, tokenizer: Tokenizer | None, records: Records, sizes: np.ndarray) -> Source:
        return LanguageRecords(records, self.length)

    def validation(self, tokenizer: Tokenizer | None, records: Sequence[Record]) -> Source:
        return LanguageRecords(records, self.length)


@dataclasses.dataclass(frozen=True)
class LanguageRecords:
    """Blocks and packed rows as examples.

    A packed row's `labels` are its tokens, but -100 at the first of each document and at padding.

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
        if "lengths" not in record:
            return {"input_ids": record["input_ids"]}
        segment_ids, position_ids = segments(record["lengths"], self.length)
        ids = padded(record["input_ids"], self.length)
        return {
            "input_ids": ids,
            "segment_ids": segment_ids,
            "position_ids": position_ids,
            "attention_mask": (segment_ids > 0).astype(np.int32),
            "labels": np.where(position_ids > 0, ids, np.int32(IGNORED)),
        }
