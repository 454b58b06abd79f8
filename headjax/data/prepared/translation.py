"""Sentences and their translations, prepared: pair by pair, or packed into rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from headjax.core.errors import require
from headjax.core.serialize import kind
from headjax.data.encoding import padding_id
from headjax.data.parallel_text import Translations
from headjax.data.prepared.form import Encoded, Form, Record, Records, Seed, Split, padded, tokenizer_of
from headjax.data.prepared.packing import pack, segments
from headjax.data.prepared.padded import Padded
from headjax.data.prepared.rows import TaskRow
from headjax.data.ragged import RaggedRows
from headjax.data.task import Source
from headjax.models.outputs import IGNORED
from headjax.tokenizers.tokenizer import Tokenizer


@kind("translations")
@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationForm(Form):
    """`source` and `target`, each ended by the end-of-text token.

    Training pairs longer than `length` are left out, those of validation are cut and keep their target as text.

    Attributes:
        length: tokens of a row on each side.
        packed: whether training rows hold several pairs that do not see each other.
    """

    fields: ClassVar = {"source": "text", "target": "text"}

    length: int = 128
    packed: bool = True

    def __post_init__(self) -> None:
        require(self.length >= 2, "length", f"must be at least 2 (a token and the end), got {self.length}")

    def check(self, tokenizer: Tokenizer | None) -> None:
        tokenizer_of(tokenizer).special_id("eos_token")

    def encode(self, tokenizer: Tokenizer | None, rows: Sequence[TaskRow], split: Split, seed: Seed) -> Encoded:
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
            records = [self._row(sides, [i]) | {"reference": _bytes(pairs[i][1])} for i in kept]
            return Encoded(list(records), counts)
        sizes = np.asarray([[len(side[i]) for side in sides] for i in kept]).reshape(-1, 2)
        groups = pack(sizes, self.length) if self.packed else [[i] for i in range(len(kept))]
        return Encoded([self._row(sides, [kept[i] for i in group]) for group in groups], counts)

    def _row(self, sides: Sequence[Sequence[np.ndarray]], pairs: Sequence[int]) -> dict[str, np.ndarray]:
        row: dict[str, np.ndarray] = {}
        for name, side in zip(("source", "target"), sides, strict=True):
            row[name] = np.concatenate([side[i] for i in pairs])
            row[f"{name}_lengths"] = np.asarray([len(side[i]) for i in pairs], np.int32)
        return row

    def tokens(self, record: Record) -> int:
        return max(len(record["source"]), len(record["target"]))

    def train(self, tokenizer: Tokenizer | None, records: Records, sizes: np.ndarray) -> Source:
        length = self.length if self.packed else min(-(-int(sizes.max(initial=1)) // 8) * 8, self.length)
        return TranslationRecords(records, sizes, padding_id(tokenizer_of(tokenizer)), length, self.packed)

    def validation(self, tokenizer: Tokenizer | None, records: Sequence[Record]) -> Source:
        fill = padding_id(tokenizer_of(tokenizer))
        source, target = (
            RaggedRows({"input_ids": [record[name] for record in records]}, {}, fill, limit=self.length)
            for name in ("source", "target")
        )
        references = tuple(record["reference"].tobytes().decode() for record in records)
        return Translations(source, target, references)


@dataclasses.dataclass(frozen=True)
class TranslationRecords(Padded):
    """Pairs and packed rows of pairs, of which the longer side's tokens count.

    Attributes:
        row_length: what examples are padded to.
        packed: whether rows hold several pairs.
    """

    row_length: int
    packed: bool

    @property
    def length(self) -> int:
        return self.row_length

    def padded(self, index: int, length: int) -> dict[str, np.ndarray]:
        record = self.records[index]
        source, target = record["source"], record["target"]
        example = {
            "input_ids": padded(source, length, self.padding_id),
            "attention_mask": padded(np.ones(len(source)), length),
            "labels": padded(target, length, IGNORED),
        }
        if self.packed:
            for side, prefix in (("source", ""), ("target", "decoder_")):
                numbers, positions = segments(record[f"{side}_lengths"], length)
                example |= {f"{prefix}segment_ids": numbers, f"{prefix}position_ids": positions}
        return example


def _bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)
