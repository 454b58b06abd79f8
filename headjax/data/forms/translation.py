"""The form of sentences and their translations: pair by pair, or packed into rows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from headjax.core.errors import require
from headjax.core.serialize import kind
from headjax.data.encoding import padding_id
from headjax.data.examples import Padded, Record, Records, Source, padded, rounded_length
from headjax.data.forms.form import Encoded, Form, Seed, language_measure, sequences_hash, tokenizer_of
from headjax.data.forms.packing import pack, segments
from headjax.data.rows import Split, TaskRow
from headjax.data.task import Measured
from headjax.models.outputs import IGNORED
from headjax.tokenizers.tokenizer import Tokenizer

SIDES = ("source", "target")


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
            held = [self._row(sides, [i]) | {"reference": _bytes(pairs[i][1])} for i in kept]
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

    def tokens(self, record: Record) -> int:
        return max(len(record["source"]), len(record["target"]))

    def examples(self, tokenizer: Tokenizer | None, records: Records, sizes: np.ndarray, split: Split) -> Source:
        packed = self.packed and split == "train"
        pad = functools.partial(self.pad, padding_id=padding_id(tokenizer_of(tokenizer)), packed=packed)
        length = self.length if packed else rounded_length(sizes, self.length)
        return (Padded if split == "train" else Translations)(records, sizes, length, pad)

    def pad(self, record: Record, length: int, *, padding_id: int, packed: bool) -> dict[str, np.ndarray]:
        """Return a record as an example of a length.

        Returns:
            `input_ids` and `attention_mask` of the source, `labels` of the target (-100 at padding); of a packed row
            also the numbers of the pairs and the positions in them, on both sides.
        """
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

    def measured(self, metrics: Sequence[str], counts: Mapping[str, Any], held: Source) -> Measured | None:
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


def _bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


def _fingerprint(records: Sequence[Record]) -> str:
    """Half of the hash of each side."""
    return "".join(sequences_hash({"input_ids": [record[side] for record in records]}, {})[:8] for side in SIDES)
