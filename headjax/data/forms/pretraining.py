"""The form of BERT's pre-training: pairs of text for next-sentence prediction with tokens masked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from headjax.core.errors import DataError, require
from headjax.core.fields import Rate, Size
from headjax.core.serialize import kind
from headjax.data.bert_text import (
    Masked,
    Masking,
    MaskingVocabulary,
    Sentences,
    masking_vocabulary,
    next_sentence_pairs,
    sentences,
)
from headjax.data.documents import pieces, units
from headjax.data.encoding import changeable, padding_id
from headjax.data.examples import RandomSource, Record, Records, Source, padded
from headjax.data.forms.form import Encoded, Form, Seed, tokenizer_of
from headjax.data.rows import Row, Split
from headjax.data.task import MeasureSpec
from headjax.models.outputs import IGNORED
from headjax.tokenizers.tokenizer import Tokenizer

CHAPTER = 50_000
"""Number of characters after which a long document (a book) is continued as another one."""

SPECIAL = 3
"""Number of special tokens of an example: [CLS] a [SEP] b [SEP]."""


@kind("pretraining_pairs")
@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingForm(Form):
    """`text` of documents, cut into sentences that are joined to pairs, with some tokens masked.

    An example is `[CLS] a [SEP] b [SEP]` with `token_type_ids`, `next_sentence_label` (0 if b follows a, 1 if b is from
    another document) and `labels`, -100 except at the masked tokens. Masking is `static`, drawn when the data is
    prepared, or `dynamic`, drawn anew each time an example is read (Liu et al. 2019, RoBERTa, section 4.1). Examples to
    evaluate on are always static.

    Attributes:
        length: greatest number of tokens of an example.
        max_predictions: greatest number of masked tokens of an example.
        rate: share of the tokens that are masked.
        masking: `static` or `dynamic`.
        copies: number of passes through the training text, with different pairs and masks (`dupe_factor`).
        shorter: share of the examples that are made shorter at random.
    """

    fields: ClassVar = {"text": "text"}

    length: Size = 128
    max_predictions: Size = 20
    rate: Rate = 0.15
    masking: Literal["static", "dynamic"] = "dynamic"
    copies: Size = 1
    shorter: Rate = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.length >= SPECIAL + 2, "length", f"must be at least {SPECIAL + 2}, got {self.length}")
        Masking(self.rate, self.max_predictions)

    def check(self, tokenizer: Tokenizer | None) -> None:
        special = [tokenizer_of(tokenizer).special_id(role) for role in ("cls_token", "sep_token", "mask_token")]
        joined = changeable(tokenizer_of(tokenizer)).encode("a", "a").ids
        if joined.count(special[0]) != 1 or joined.count(special[1]) != 2:
            raise DataError("tokenizer: it does not join pairs as [CLS] a [SEP] b [SEP], so it is not that of a BERT")

    def encode(self, tokenizer: Tokenizer | None, rows: Sequence[Row], split: Split, seed: Seed) -> Encoded:
        tokenizer = tokenizer_of(tokenizer)
        cls, sep = (np.asarray([tokenizer.special_id(role)], np.int32) for role in ("cls_token", "sep_token"))
        vocabulary, masking = masking_vocabulary(tokenizer), Masking(self.rate, self.max_predictions)
        documents = self._documents(tokenizer, rows)
        records: list[Record] = []
        copies = range(self.copies if split == "train" else 1)
        for copy, number in ((copy, number) for copy in copies for number in range(len(documents))):
            generator = np.random.default_rng([*seed, copy, number])
            for pair in next_sentence_pairs(documents, number, self.length - SPECIAL, self.shorter, generator):
                ids = np.concatenate([cls, pair.first, sep, pair.second, sep])
                record = {
                    "input_ids": ids,
                    "first": np.asarray([len(pair.first) + 2], np.int32),
                    "next_sentence_label": np.asarray([0 if pair.follows else 1], np.int32),
                }
                if split == "validation" or self.masking == "static":
                    masked = masking(ids, vocabulary, generator)
                    record |= {"input_ids": masked.input_ids, "positions": masked.positions, "ids": masked.labels}
                records.append(record)
        tokens = sum(len(record["input_ids"]) for record in records)
        random = sum(int(record["next_sentence_label"][0]) for record in records)
        return Encoded(records, {"documents": len(rows), "tokens": tokens, "random_next": random})

    def _documents(self, tokenizer: Tokenizer, rows: Sequence[Row]) -> list[Sentences]:
        """Return the rows as documents of encoded sentences: at least two documents, or none."""
        found: list[Sentences] = []
        for row in rows:
            for chapter in pieces(units(row.values["text"], CHAPTER), CHAPTER):
                encoded = [ids for ids in tokenizer.encode(sentences("".join(chapter))) if len(ids)]
                if encoded:
                    found.append(encoded)
        if len(found) == 1:
            middle = len(found[0]) // 2
            found = [found[0][:middle], found[0][middle:]] if middle else []
        return found

    @property
    def limit(self) -> int:
        return self.length

    def tokens(self, record: Record) -> int:
        return len(record["input_ids"])

    def examples(self, tokenizer: Tokenizer | None, records: Records, sizes: np.ndarray, split: Split) -> Source:
        tokenizer = tokenizer_of(tokenizer)
        masking = Masking(self.rate, self.max_predictions)
        return MaskedPairs(records, masking, masking_vocabulary(tokenizer), padding_id(tokenizer), self.length)

    def measured(self, metrics: Sequence[str], counts: Mapping[str, Any], held: Source) -> MeasureSpec | None:
        return MeasureSpec("masked_and_next")

    def nothing(self, split: Split, counts: Mapping[str, int], place: str) -> str:
        return f"{place}: too little text to make examples of the {split} split"


@dataclasses.dataclass(frozen=True)
class MaskedPairs(RandomSource):
    """Pairs as examples; those that are not masked on disk are masked when read.

    Attributes:
        records: the records.
        rule: draws the masked tokens.
        vocabulary: special and ordinary tokens.
        padding_id: id of padding in `input_ids`.
        length: number of tokens of an example.
    """

    records: Records
    rule: Masking
    vocabulary: MaskingVocabulary
    padding_id: int
    length: int

    def __len__(self) -> int:
        return len(self.records)

    def draw(self, index: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
        record = self.records[index]
        if "positions" in record:
            masked = Masked(record["input_ids"], record["positions"], record["ids"])
        else:
            masked = self.rule(record["input_ids"], self.vocabulary, generator)
        tokens, first = len(masked.input_ids), int(record["first"][0])
        labels = np.full(self.length, IGNORED, np.int32)
        labels[masked.positions] = masked.labels
        return {
            "input_ids": padded(masked.input_ids, self.length, self.padding_id),
            "token_type_ids": padded(np.repeat([0, 1], [first, tokens - first]), self.length),
            "attention_mask": padded(np.ones(tokens), self.length),
            "labels": labels,
            "next_sentence_label": record["next_sentence_label"][0],
        }
