"""Data of text: for language models, pre-training, translation, questions, and WikiText-2 by a fixed protocol."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import numpy as np

from headjax.core.errors import DataError, require
from headjax.core.fields import Checked, Count, Fraction, Size
from headjax.core.serialize import kind
from headjax.data.corpus import Embedded, embedded_split
from headjax.data.documents import Document, read_documents, split, text_files
from headjax.data.examples import Source
from headjax.data.files import find_files, packed_or_plain, read_lines, search
from headjax.data.forms.form import language_measure, text_counts
from headjax.data.forms.language import LanguageForm, TranslationForm
from headjax.data.forms.pretraining import PretrainingForm
from headjax.data.forms.questions import QuestionForm
from headjax.data.loading import Reading, load_rows, totals
from headjax.data.rows import Row, Split, divided
from headjax.data.task import DataConfig, TaskData
from headjax.data.text_rows import document_rows, read_questions, translation_pairs
from headjax.models.outputs import IGNORED
from headjax.tokenizers.learned import check_tokenizer, make_tokenizer
from headjax.tokenizers.tokenizer import Tokenizer
from headjax.tokenizers.vocabularies import wordpiece_tokenizer

EMBEDDED_NAMES: dict[Embedded, str] = {
    "docs": "the text that ships with Python",
    "code": "the source code of Python's standard library",
}


@kind("language")
@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageConfig(DataConfig):
    """Text to train a language model on, as one stream: see `LanguageForm`.

    Attributes:
        path: the user's text: a file, a folder or a glob pattern; empty for a text that ships with Python.
        embedded: which one: `docs` (the language reference and docstrings) or `code` (the library's source code, of
            which whole files are held out).
        length: number of tokens of an example.
        tokenizer: `bpe` (byte pairs) or `sentencepiece`, learned from the training text; `bytes`; or a folder with
            the files of a tokenizer.
        vocab_size: number of tokens to learn; `bytes` always has 257.
        validation: the user's text to evaluate on, likewise; empty holds some of `path` out.
        validation_fraction: approximate share of the text that is held out.
    """

    path: str = ""
    validation: str = ""
    embedded: Embedded = "docs"
    length: Size = 128
    tokenizer: str = "bpe"
    vocab_size: Size = 1024
    validation_fraction: Fraction = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        self.form  # noqa: B018  (the form checks its own fields)
        check_tokenizer(self.tokenizer)

    @property
    def form(self) -> LanguageForm:
        """The form of the documents."""
        return LanguageForm(length=self.length)

    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        """See `DataConfig.load`; nothing is written to disk."""
        fraction = self.validation_fraction
        found: dict[Split, list[Document]]
        if self.validation:
            require(bool(self.path), "path", "name the text to train on, too")
            found = {"train": text_files(self.path), "validation": text_files(self.validation)}
        else:
            found = split(text_files(self.path), fraction) if self.path else embedded_split(self.embedded, fraction)
        if tokenizer is None:
            texts = [document.text for document in found["train"]]
            tokenizer = make_tokenizer(self.tokenizer, texts, self.vocab_size)
        info = {"text": self.path or EMBEDDED_NAMES[self.embedded]}
        return load_rows(self.form, document_rows(found), tokenizer, info)


def whole_text_data(path: str, length: int, tokenizer: Tokenizer) -> TaskData:
    """Return all of a text as examples to evaluate on, blocks of tokens, without training examples."""
    rows = document_rows({"validation": text_files(path)})
    return load_rows(LanguageForm(length=length), rows, tokenizer, {"text": path})


@kind("pretraining_text")
@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingText(DataConfig):
    """Text files as pairs for next-sentence prediction with tokens masked: see `PretrainingForm`.

    Attributes:
        path: a file, a folder or a glob pattern.
        vocabulary: a BERT's `vocab.txt`, to train a model that brings no tokenizer.
        length: greatest number of tokens of an example.
        max_predictions: greatest number of masked tokens of an example.
        masking: `dynamic` (drawn again each time an example is read) or `static`.
        copies: number of passes through the text, with different pairs and masks.
        validation_fraction: approximate share of the text that is held out.
        seed: seed of the pairs and of static masks.
    """

    path: str
    vocabulary: str = ""
    length: Size = 128
    max_predictions: Size = 20
    masking: Literal["static", "dynamic"] = "dynamic"
    copies: Size = 1
    validation_fraction: Fraction = 0.05
    seed: Count = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.form  # noqa: B018  (the form checks its own fields)

    @property
    def form(self) -> PretrainingForm:
        """The form of the documents."""
        names = ("length", "max_predictions", "masking", "copies")
        return PretrainingForm(**{name: getattr(self, name) for name in names})

    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        tokenizer = tokenizer or vocabulary_tokenizer(self.vocabulary)
        found = split([one for file in find_files(self.path) for one in read_documents(file)], self.validation_fraction)
        return load_rows(self.form, document_rows(found), tokenizer, {"text": self.path}, seed=(self.seed,))


@kind("parallel_text")
@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelText(DataConfig):
    """Sentences with their translations: line-aligned files or tables, each also packed (`.gz`).

    Attributes:
        validation, train: paths without the language, to which `.source` and `.target` are added: `data/train` stands
            for `data/train.en` and `data/train.de`; or tables (`.tsv`, `.csv`, `.json`, `.jsonl`, `.parquet`). Without
            `train` there are no training examples; without `validation` some pairs of `train` are held out.
        validation_fraction: approximate share of the pairs that is held out, by the hash of the source.
        source, target: the languages: suffixes of the files, or columns of the tables (numbers from 0 if a table has no
            header).
        max_length: number of tokens of a sentence, the end token included; longer training pairs are left out, longer
            validation sentences are cut.
        tokenizer: `bpe` or `sentencepiece`, learned from both sides of the training text, or a folder with the files of
            a tokenizer; used if the model brings none.
        vocab_size: number of tokens to learn.
        buckets: lengths to which training batches are padded, besides `max_length`; one compilation each.
    """

    validation: str = ""
    source: str
    target: str
    train: str = ""
    validation_fraction: Fraction = 0.1
    max_length: Size = 64
    tokenizer: str = "bpe"
    vocab_size: Size = 8000
    buckets: tuple[Size, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.train or self.validation), "train", "name pairs to train on, pairs to evaluate on, or both")
        require(self.max_length >= 2, "max_length", f"must be at least 2 (a token and the end), got {self.max_length}")
        check_tokenizer(self.tokenizer)
        require(self.source != self.target, "target", f"is the source's language too: {self.source}")

    @property
    def form(self) -> TranslationForm:
        """The form of the pairs."""
        return TranslationForm(length=self.max_length, packed=False)

    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        paths: dict[Split, str] = {"train": self.train, "validation": self.validation}
        rows = {
            name: [*translation_pairs(path, self.source, self.target)] if path else [] for name, path in paths.items()
        }
        if not self.validation:
            rows = divided(rows["train"], "source", self.validation_fraction, self.train)
        if tokenizer is None:
            require(bool(self.train), "train", "there is no text to learn a vocabulary from")
            texts = [text for row in rows["train"] for text in self.form.texts(row)]
            tokenizer = make_tokenizer(self.tokenizer, texts, self.vocab_size)
        info = {"text": self.train or self.validation}
        return load_rows(self.form, rows, tokenizer, info, Reading(buckets=self.buckets))


@kind("question_answering")
@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionAnswering(DataConfig):
    """SQuAD v1.1 (Rajpurkar et al. 2016), or files in its format: see `QuestionForm`.

    Attributes:
        train: file to train on; empty for none.
        validation: file to evaluate on; empty holds some of the training questions out, all those of a paragraph.
        validation_fraction: approximate share of the questions that is held out.
        validation_limit: number of its questions that are read, from the start; 0 is all.
        max_length: number of tokens of a window.
        stride: number of tokens by which windows overlap.
        buckets: lengths to which training batches are padded, besides the longest window's; one compilation each.
    """

    validation: str = ""
    train: str = ""
    validation_fraction: Fraction = 0.1
    validation_limit: Count = 0
    max_length: Size = 384
    stride: Count = 128
    buckets: tuple[Size, ...] = ()

    @property
    def form(self) -> QuestionForm:
        """The form of the questions."""
        return QuestionForm(length=self.max_length, stride=self.stride)

    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        if tokenizer is None:
            raise DataError("tokenizer: questions need a model that brings its tokenizer")
        train = read_questions(self.train) if self.train else []
        rows: dict[Split, list[Row]]
        if self.validation:
            rows = {"train": train, "validation": read_questions(self.validation)}
        else:
            require(bool(train), "train", "name a file to train on, one to evaluate on, or both")
            rows = divided(train, "context", self.validation_fraction, self.train)
        rows["validation"] = rows["validation"][: self.validation_limit or None]
        info = {"text": self.train or self.validation}
        return load_rows(self.form, rows, tokenizer, info, Reading(buckets=self.buckets))


def vocabulary_tokenizer(vocabulary: str) -> Tokenizer:
    """Return the tokenizer of a BERT's `vocab.txt`, for a model that brings no tokenizer."""
    if not vocabulary:
        raise DataError("vocabulary: the model brings no tokenizer; name a vocab.txt")
    return wordpiece_tokenizer(vocabulary)


CONTEXT = 1024
"""Default number of tokens of a window; models with fewer positions take as many as they have."""

FOLDERS = ("lm/wikitext-2-raw", "wikitext-2-raw")
"""Folders in which the files are looked for."""

FILES = {"train": "wiki.train.raw", "validation": "wiki.valid.raw", "test": "wiki.test.raw"}
"""Files by split; each may also be packed (`.gz`)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WikiText2(Checked):
    """WikiText-2 (Merity et al. 2016) by one fixed protocol, so that perplexities compare between models and tools.

    * Text: a split's raw file as it is (`wiki.valid.raw`), read whole and encoded at once, without special tokens.
    * Beginning: one `bos_token` before the text (one `eos_token` where the tokenizer has no `bos_token`, as GPT-2
      begins documents; nothing where it has neither, and the first token is then not predicted). None at the start of
      windows.
    * Windows: `context` tokens each. A window starts `stride` tokens after the one before and predicts the tokens that
      those before have not predicted, so every token is predicted once. The last window ends with the text and is as
      long as the others. Without a stride it is context - 1: windows share one token.
    * Metrics: perplexity per token exp(loss / tokens), per word exp(loss / words), bits per byte
      loss / (ln 2 * bytes), with the loss summed over the text, words separated by white space (line ends are no
      words), and bytes of UTF-8.

    The stride context - 1 is the rolling log-likelihood of lm-evaluation-harness with a `max_length` of context - 1.

    Attributes:
        path: folder of the files; empty looks for it under HEADJAX_DATA.
        context: number of tokens of a window.
        stride: number of tokens between the starts of windows; 0 is context - 1.
        split: the split to evaluate on. The examples to choose heads and to calibrate on are the training split's.
    """

    path: str = ""
    context: Size = CONTEXT
    stride: Count = 0
    split: Literal["validation", "test"] = "validation"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.context >= 2, "context", f"must be at least 2 (a token and its successor), got {self.context}")
        fits = self.stride < self.context
        asks = f"must be below the context of {self.context}, so that every token is predicted, got {self.stride}"
        require(fits, "stride", asks)

    def load(self, tokenizer: Tokenizer, trains: bool = True) -> TaskData:
        """Read and encode the files."""
        held = self._file(self.split)
        text = "".join(read_lines(held))
        role = next((role for role in ("bos_token", "eos_token") if role in dict(tokenizer.special)), None)
        begin = [] if role is None else [tokenizer.special_id(role)]
        tokens = np.concatenate([np.asarray(begin, np.int32), tokenizer.encode([text])[0]])
        windows = Windows(tokens, min(self.context, len(tokens)), self.stride or self.context - 1)
        counts = totals([(len(windows), text_counts([text], len(tokens) - 1))])
        protocol = {
            "text": held.name,
            "split": self.split,
            "context": self.context,
            "stride": windows.stride,
            "begins_with": "nothing" if role is None else dict(tokenizer.special)[role],
            "tokens": len(tokens) - 1,
            "words": counts["words"],
            "bytes": counts["bytes"],
        }
        info: dict[str, Any] = {"text": str(held), "protocol": protocol, "validation": counts}
        train, known = self._train(tokenizer) if trains else ((), {})
        return TaskData(tokenizer, train, windows, info | known, language_measure(counts))

    def _train(self, tokenizer: Tokenizer) -> tuple[Source, dict[str, Any]]:
        """Return the training split as blocks of tokens, each article ended by the end-of-text token."""
        form = LanguageForm(length=self.context)
        form.check(tokenizer)
        split: Split = "train"
        rows = document_rows({split: list(read_documents(self._file(split)))})[split]
        encoded = form.encode(tokenizer, rows, split, (0,))
        counts = totals([(len(encoded.records), encoded.counts)])
        return form.examples(tokenizer, encoded.records, np.zeros(0), split), {
            split: counts,
            "data": encoded.fingerprint,
        }

    def _file(self, split: str) -> Path:
        name = FILES[split]
        wanted = f"{name} or {name}.gz"
        return search("wikitext2", self.path, FOLDERS, lambda folder: packed_or_plain(folder / name), wanted)


@dataclasses.dataclass(frozen=True)
class Windows:
    """Overlapping windows of a text, in which every token but the first is predicted once."""

    tokens: np.ndarray
    context: int
    stride: int

    def __len__(self) -> int:
        return 1 + -(-(len(self.tokens) - self.context) // self.stride)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """Return a window: its `input_ids`, and `labels`, which are -100 at tokens that earlier windows predict."""
        start = min(index * self.stride, len(self.tokens) - self.context)
        ids = self.tokens[start : start + self.context]
        predicted = 0 if index == 0 else self.context + (index - 1) * self.stride
        fresh = np.arange(start, start + self.context) >= predicted
        return {"input_ids": ids, "labels": np.where(fresh, ids, np.int32(IGNORED))}
