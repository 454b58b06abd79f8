"""Forms of running text: language models' documents and translations, one a row or packed together."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from headjax.core.class_names import IGNORED
from headjax.core.errors import require
from headjax.core.serialize import kind
from headjax.data.examples import (
    Mapped,
    Padded,
    Record,
    Records,
    Source,
    TokenBlocks,
    padded,
    padding_id,
    rounded_length,
)
from headjax.data.forms.form import Encoded, Form, Seed, language_measure, sequences_hash, text_counts, tokenizer_of
from headjax.data.rows import Row, Split
from headjax.data.task import MeasureSpec
from headjax.tokenizers.tokenizer import Tokenizer

OPEN_ROWS = 32
"""Number of rows that are filled at the same time; when another is needed, the fullest is closed."""


def pack(sizes: np.ndarray, capacity: int) -> list[list[int]]:
    """Group examples into rows: each example goes into the first row that has room for it."""
    done: list[list[int]] = []
    rows: list[list[int]] = []
    room = np.zeros((0, sizes.shape[1]), np.int64)
    for number, size in enumerate(sizes):
        fitting = np.flatnonzero((room >= size).all(axis=1))
        if fitting.size:
            place = int(fitting[0])
        else:
            if len(rows) == OPEN_ROWS:
                fullest = int(room.sum(axis=1).argmin())
                done.append(rows.pop(fullest))
                room = np.delete(room, fullest, axis=0)
            place = len(rows)
            rows.append([])
            room = np.vstack([room, np.full((1, sizes.shape[1]), capacity)])
        rows[place].append(number)
        room[place] -= size
    return done + rows


def segments(lengths: Sequence[int] | np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the examples in a packed row and the positions in them, int32 `[length]` each."""
    lengths = np.asarray(lengths, np.int64)
    numbers = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    segment_ids, position_ids = np.zeros(length, np.int32), np.zeros(length, np.int32)
    segment_ids[: len(numbers)] = numbers
    position_ids[: len(numbers)] = np.arange(len(numbers)) - starts
    return segment_ids, position_ids


@kind("language_model_rows")
@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageForm(Form):
    """`text` of documents, as one stream or packed.

    Streamed documents follow one another, each ended by the end-of-text token, and the stream is cut into blocks; a
    token attends to all earlier tokens of its block, also to those of other documents (GPT-2). A packed row holds whole
    documents that do not attend to each other (`segment_ids`). The positions of each start at 0, and each stands
    between two end-of-text tokens, so that its first token is predicted too. A document longer than a row is continued
    in the next row, which repeats one token.

    Attributes:
        length: number of tokens of an example.
        packed: whether documents are kept apart.
    """

    fields: ClassVar = {"text": "text"}

    length: int = 128
    packed: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.length >= 2, "length", f"must be at least 2 (a token and its successor), got {self.length}")

    def check(self, tokenizer: Tokenizer | None) -> None:
        tokenizer_of(tokenizer).special_id("eos_token")

    def encode(self, tokenizer: Tokenizer | None, rows: Sequence[Row], split: Split, seed: Seed) -> Encoded:
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

    @property
    def limit(self) -> int:
        return self.length

    def tokens(self, record: Record) -> int:
        return len(record["input_ids"])

    def examples(self, tokenizer: Tokenizer | None, records: Records, sizes: np.ndarray, split: Split) -> Source:
        return Mapped(records, self.unpacked) if self.packed else records

    def unpacked(self, record: Record) -> dict[str, np.ndarray]:
        """Return a packed row as an example.

        Its `labels` are its tokens, except for -100 at the first token of each document and at padding.
        """
        segment_ids, position_ids = segments(record["lengths"], self.length)
        ids = padded(record["input_ids"], self.length)
        return {
            "input_ids": ids,
            "segment_ids": segment_ids,
            "position_ids": position_ids,
            "attention_mask": (segment_ids > 0).astype(np.int32),
            "labels": np.where(position_ids > 0, ids, np.int32(IGNORED)),
        }

    def measured(self, metrics: Sequence[str], counts: Mapping[str, Any], held: Source) -> MeasureSpec | None:
        return language_measure(counts)

    def nothing(self, split: Split, counts: Mapping[str, int], place: str) -> str:
        too_little = f"the {split} text has {counts['tokens']} tokens, less than one block of {self.length}"
        return f"length: {too_little}; lower length or give more text"


SIDES = ("source", "target")


@kind("translations")
@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationForm(Form):
    """`source` and `target`, each ended by the end-of-text token.

    Training pairs longer than `length` are skipped; validation pairs are cut, and keep their target as text.

    Attributes:
        length: number of tokens of a row on each side.
        packed: whether training rows hold several pairs, which do not attend to each other.
    """

    fields: ClassVar = {"source": "text", "target": "text"}

    length: int = 128
    packed: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.length >= 2, "length", f"must be at least 2 (a token and the end), got {self.length}")

    def check(self, tokenizer: Tokenizer | None) -> None:
        tokenizer_of(tokenizer).special_id("eos_token")

    def encode(self, tokenizer: Tokenizer | None, rows: Sequence[Row], split: Split, seed: Seed) -> Encoded:
        tokenizer = tokenizer_of(tokenizer)
        end = np.asarray([tokenizer.special_id("eos_token")], np.int32)
        pairs = [(row.values["source"].strip(), row.values["target"].strip()) for row in rows]
        pairs = [pair for pair in pairs if all(pair)]
        sides = [
            [np.concatenate([ids, end]) for ids in one.encode([pair[side] for pair in pairs])]
            for side, one in enumerate((tokenizer, tokenizer.for_targets))
        ]
        kept = list(range(len(pairs)))
        if split == "train":
            kept = [i for i in kept if max(len(sides[0][i]), len(sides[1][i])) <= self.length]
        else:
            cut = self.length - 1
            sides = [[np.concatenate([ids[:-1][:cut], end]) for ids in side] for side in sides]
        targets = [pairs[i][1] for i in kept]
        counts = {
            "pairs": len(kept),
            "left_out": len(rows) - len(kept),
            "source_tokens": sum(len(sides[0][i]) for i in kept),
            "tokens": sum(len(sides[1][i]) for i in kept),
            "words": sum(len(one.split()) for one in targets),
            "bytes": sum(len(one.encode()) for one in targets),
        }
        if split == "validation":
            held = [self._row(sides, [i]) | {"reference": np.frombuffer(pairs[i][1].encode(), np.uint8)} for i in kept]
            return Encoded(held, counts, _fingerprint(held))
        sizes = np.asarray([[len(side[i]) for side in sides] for i in kept]).reshape(-1, 2)
        groups = pack(sizes, self.length) if self.packed else [[i] for i in range(len(kept))]
        records = [self._row(sides, [kept[i] for i in group]) for group in groups]
        return Encoded(records, counts, _fingerprint(records))

    def _row(self, sides: Sequence[Sequence[np.ndarray]], pairs: Sequence[int]) -> dict[str, np.ndarray]:
        row: dict[str, np.ndarray] = {}
        for name, side in zip(SIDES, sides, strict=True):
            row[name] = np.concatenate([side[i] for i in pairs])
            row[f"{name}_lengths"] = np.asarray([len(side[i]) for i in pairs], np.int32)
        return row

    @property
    def limit(self) -> int:
        return self.length

    def tokens(self, record: Record) -> int:
        return max(len(record["source"]), len(record["target"]))

    def examples(self, tokenizer: Tokenizer | None, records: Records, sizes: np.ndarray, split: Split) -> Source:
        packed = self.packed and split == "train"
        pad = functools.partial(self.pad, padding_id=padding_id(tokenizer_of(tokenizer)), packed=packed)
        length = self.length if packed else rounded_length(sizes, self.length)
        return (Padded if split == "train" else Translations)(records, sizes, length, pad)

    def pad(self, record: Record, length: int, *, padding_id: int, packed: bool) -> dict[str, np.ndarray]:
        """Return a record as an example of a length."""
        source, target = record["source"], record["target"]
        example = {
            "input_ids": padded(source, length, padding_id),
            "attention_mask": padded(np.ones(len(source)), length),
            "labels": padded(target, length, IGNORED),
        }
        if packed:
            for side, prefix in zip(SIDES, ("", "decoder_"), strict=True):
                numbers, positions = segments(record[f"{side}_lengths"], length)
                example |= {f"{prefix}segment_ids": numbers, f"{prefix}position_ids": positions}
        return example

    def measured(self, metrics: Sequence[str], counts: Mapping[str, Any], held: Source) -> MeasureSpec | None:
        return language_measure(counts)

    def nothing(self, split: Split, counts: Mapping[str, int], place: str) -> str:
        return f"{split}: no pair has at most {self.length} tokens on both sides"


class Translations(Padded):
    """Pairs to evaluate on."""

    @functools.cached_property
    def references(self) -> tuple[str, ...]:
        """The targets as text."""
        records = (self.records[index] for index in range(len(self)))
        return tuple(record["reference"].tobytes().decode() for record in records)


def _fingerprint(records: Sequence[Record]) -> str:
    """Return half of the hash of each side, joined."""
    return "".join(sequences_hash({"input_ids": [record[side] for record in records]}, {})[:8] for side in SIDES)
