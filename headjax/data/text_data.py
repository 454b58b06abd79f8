"""Data of the user's own text: for language models, pre-training, translation, questions."""

from __future__ import annotations

import dataclasses
from typing import Literal

from headjax.core.errors import DataError, require
from headjax.core.fields import Count, Fraction, Size
from headjax.core.serialize import kind
from headjax.data.corpus import Embedded, embedded_split
from headjax.data.documents import Document, read_documents, split, text_files
from headjax.data.files import find_files
from headjax.data.forms.language import LanguageForm, TranslationForm
from headjax.data.forms.pretraining import PretrainingForm
from headjax.data.forms.questions import QuestionForm
from headjax.data.loading import Reading, load_rows
from headjax.data.rows import Row, Split, divided
from headjax.data.task import DataConfig, TaskData
from headjax.data.text_rows import document_rows, read_questions, translation_pairs
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
            the files of a tokenizer (`headjax tokenizer`).
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
        """See `DataConfig.load`; nothing is written to disk.

        Raises:
            DataError: a file that cannot be used, too little text for a block, or for the vocabulary.
        """
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
    """Return all of a text as examples to evaluate on, blocks of tokens, without training examples.

    Args:
        path: a file, a folder or a glob pattern.
        length: number of tokens of an example.
        tokenizer: the model's; it needs an `eos_token`.

    Raises:
        DataError: a file that cannot be used, or too little text for a block.
    """
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
        masking: `dynamic` (drawn anew each time an example is read) or `static`.
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
    """Return the tokenizer of a BERT's `vocab.txt`, for a model that brings no tokenizer.

    Raises:
        DataError: no file is named.
    """
    if not vocabulary:
        raise DataError("vocabulary: the model brings no tokenizer; name a vocab.txt")
    return wordpiece_tokenizer(vocabulary)
