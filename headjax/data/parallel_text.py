"""Sentences and their translations from line-aligned files or tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headjax.core.errors import DataError, require, require_positive
from headjax.core.serialize import kind
from headjax.data.buckets import LengthBuckets
from headjax.data.encoding import padding_id
from headjax.data.ragged import RaggedRows
from headjax.data.tables import table_rows
from headjax.data.task import DataConfig, TaskData
from headjax.data.text_files import count_lines, read_lines
from headjax.models.outputs import IGNORED
from headjax.tokenizers.learned import check_tokenizer, make_tokenizer
from headjax.tokenizers.tokenizer import Tokenizer

SUFFIXES = ("", ".gz")
TABLES = (".tsv", ".csv", ".json", ".jsonl")


class SentencePair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


@dataclasses.dataclass(frozen=True)
class Translations:
    """Pairs as examples: `input_ids` and `attention_mask` of the source, `labels` of the target, -100 at padding.

    Attributes:
        source, target: token ids, both padded to one length.
        references: the targets as text.
    """

    source: RaggedRows
    target: RaggedRows
    references: tuple[str, ...]

    @property
    def lengths(self) -> np.ndarray:
        """`[examples]` tokens of the longer side."""
        return np.maximum(self.source.lengths, self.target.lengths)

    @property
    def length(self) -> int:
        """What examples are padded to."""
        return max(self.source.length, self.target.length)

    @property
    def fingerprint(self) -> str:
        """Hash of all examples."""
        return self.source.fingerprint[:8] + self.target.fingerprint[:8]

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return self.padded(index, self.length)

    def padded(self, index: int, length: int) -> dict[str, np.ndarray]:
        """The example padded to another length, not below its own."""
        target = self.target.padded(index, length)
        labels = np.where(target["attention_mask"] == 1, target["input_ids"], np.int32(IGNORED))
        return {**self.source.padded(index, length), "labels": labels}

    def first(self, count: int) -> Translations:
        """The first pairs, padded as all are."""
        return self.select(np.arange(min(count, len(self))), self.length)

    def select(self, indices: np.ndarray, length: int | None = None) -> Translations:
        """These pairs, padded to another length."""
        references = tuple(self.references[index] for index in indices)
        return Translations(self.source.select(indices, length), self.target.select(indices, length), references)


@kind("parallel_text")
@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelText(DataConfig):
    """Files of sentences, one a line, whose lines belong together. Each may be packed (`.gz`).

    Attributes:
        validation, train: paths without the language, to which `.source` and `.target` are added: `data/train` stands
            for `data/train.en` and `data/train.de`; or tables (`.tsv`, `.csv`, `.json`, `.jsonl`). Without `train`
            there is only evaluation.
        source, target: the languages: suffixes of the files, or columns of the tables (numbers from 0 where a table
            has no header).
        max_length: tokens of a sentence, the end token included; longer training pairs are left out, longer
            validation sentences are cut.
        tokenizer: `bpe` or `sentencepiece`, learned from both sides of the training text, or a folder with the files of
            a tokenizer; where the model brings none.
        vocab_size: tokens to learn.
        buckets: lengths that training batches are padded to, besides `max_length`; one compilation each.
    """

    validation: str
    source: str
    target: str
    train: str = ""
    max_length: int = 64
    tokenizer: str = "bpe"
    vocab_size: int = 8000
    buckets: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require_positive(self, "max_length", "vocab_size")
        require(self.max_length >= 2, "max_length", f"must be at least 2 (a token and the end), got {self.max_length}")
        check_tokenizer(self.tokenizer)
        require(self.source != self.target, "target", f"is the source's language too: {self.source}")

    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        pairs = {split: self.read(path) if (path := getattr(self, split)) else [] for split in ("train", "validation")}
        if tokenizer is None:
            require(bool(self.train), "train", "there is no text to learn a vocabulary from")
            texts = [text for pair in pairs["train"] for text in pair]
            tokenizer = make_tokenizer(self.tokenizer, texts, self.vocab_size)
        train = self.encode(tokenizer, pairs["train"])
        short = np.flatnonzero(train.lengths < self.max_length)
        if self.train and not short.size:
            raise DataError(f"{self.train}: no pair is shorter than max_length, {self.max_length} tokens")
        train = train.select(short)
        validation = self.encode(tokenizer, pairs["validation"])
        info = {
            "text": self.train or self.validation,
            "tokenizer": tokenizer.fingerprint,
            "data": train.fingerprint,
            "train": {"pairs": len(train), "left_out": len(pairs["train"]) - len(train), **_tokens(train)},
            "validation": {"pairs": len(validation), **_tokens(validation)},
        }
        return TaskData(tokenizer, LengthBuckets(train, self.buckets) if self.buckets else train, validation, info)

    def read(self, path: str) -> list[SentencePair]:
        """The pairs of `pairs` in memory."""
        return list(self.pairs(path))

    def pairs(self, path: str) -> Iterator[SentencePair]:
        """The pairs of two line-aligned files, or of a table, one after another; none with an empty side.

        Raises:
            DataError: a file that cannot be used, files of different lengths, or no pairs.
        """
        table = path.removesuffix(".gz").endswith(TABLES)
        rows = (row.values for row in table_rows(path, [self.source, self.target])) if table else self._lines(path)
        pair = None
        for source, target in ((one.strip() for one in row) for row in rows):
            if source and target:
                pair = SentencePair(source, target)
                yield pair
        if pair is None:
            raise DataError(f"{path}: no line has text on both sides")

    def _lines(self, path: str) -> Iterator[tuple[str, str]]:
        files = [_find(f"{path}.{language}") for language in (self.source, self.target)]
        lengths = [count_lines(file) for file in files]
        if lengths[0] != lengths[1]:
            raise DataError(f"{files[1]}: {lengths[1]:,} lines, but {files[0].name} has {lengths[0]:,}")
        return zip(*map(read_lines, files), strict=True)

    def encode(self, tokenizer: Tokenizer, pairs: Sequence[SentencePair]) -> Translations:
        """The pairs as examples, each side ended by the end-of-text token and cut to `max_length`."""
        both = (tokenizer, tokenizer.for_targets)
        sides = [self._side(one, [pair[side] for pair in pairs]) for side, one in enumerate(both)]
        return Translations(sides[0], sides[1], tuple(pair.target for pair in pairs))

    def _side(self, tokenizer: Tokenizer, texts: Sequence[str]) -> RaggedRows:
        end = np.asarray([tokenizer.special_id("eos_token")], np.int32)
        ids = [np.concatenate([found[: self.max_length - 1], end]) for found in tokenizer.encode(texts)]
        return RaggedRows({"input_ids": ids}, {}, padding_id(tokenizer), limit=self.max_length)


def _tokens(pairs: Translations) -> dict[str, float]:
    """Tokens of both sides, and words and bytes of the target for each of its tokens."""
    tokens = int(pairs.target.lengths.sum())
    words = sum(len(text.split()) for text in pairs.references)
    size = sum(len(text.encode()) for text in pairs.references)
    ratios = {"words_per_token": words / max(tokens, 1), "bytes_per_token": size / max(tokens, 1)}
    return {"source_tokens": int(pairs.source.lengths.sum()), "target_tokens": tokens, **ratios}


def _find(path: str) -> Path:
    for suffix in SUFFIXES:
        file = Path(f"{path}{suffix}").expanduser()
        if file.is_file():
            return file
    raise DataError(f"{path}: no such file, packed or not")
