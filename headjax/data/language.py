"""Text for language models: from files or from Python itself to blocks of tokens."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headjax.core.errors import DataError, require, require_positive
from headjax.core.serialize import kind
from headjax.data.corpus import embedded_corpus
from headjax.data.passages import Document
from headjax.data.records import TokenBlocks
from headjax.data.split import split
from headjax.data.task import DataConfig, TaskData
from headjax.data.text_files import text_files
from headjax.tokenizers.learned import check_tokenizer, make_tokenizer
from headjax.tokenizers.tokenizer import Tokenizer


@kind("language")
@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageConfig(DataConfig):
    """Text to train a language model on.

    Attributes:
        path: the user's text: a file, a folder or a glob pattern; empty for the text that ships with Python.
        length: tokens of one example.
        tokenizer: `bpe` (byte pairs) or `sentencepiece`, learned from the training text; `bytes`; or a folder with
            the files of a tokenizer (`headjax tokenizer`).
        vocab_size: tokens to learn; `bytes` always has 257.
        validation_fraction: how much of the text is held out, about.
    """

    path: str = ""
    length: int = 128
    tokenizer: str = "bpe"
    vocab_size: int = 1024
    validation_fraction: float = 0.05

    def __post_init__(self) -> None:
        require_positive(self, "length", "vocab_size")
        require(self.length >= 2, "length", f"must be at least 2 (a token and its successor), got {self.length}")
        check_tokenizer(self.tokenizer)
        fraction = self.validation_fraction
        require(0.0 < fraction < 1.0, "validation_fraction", f"must be within (0, 1), got {fraction}")

    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        return language_model_data(self, tokenizer)


def language_model_data(config: LanguageConfig, tokenizer: Tokenizer | None = None) -> TaskData:
    """Reads the text, holds some out, learns the tokenizer from the rest, and cuts both into blocks of tokens.

    Documents follow one another, each ended by the end-of-text token. Nothing is written to disk.

    Args:
        config: which text, and how.
        tokenizer: use this one instead of learning one; it needs an `eos_token`.

    Returns:
        The data. Its `info` is JSON data: `text` (where it comes from), `tokenizer` and `data` (fingerprints of the
        vocabulary and of the training tokens), and under `train` and `validation` what `count` says of them.

    Raises:
        DataError: a file that cannot be used, too little text for a block, or for the vocabulary.
    """
    documents = text_files(config.path) if config.path else embedded_corpus()
    train, validation = split(documents, config.validation_fraction)
    if tokenizer is None:
        tokenizer = make_tokenizer(config.tokenizer, [document.text for document in train], config.vocab_size)
    tokens = {"train": _join(tokenizer, train), "validation": _join(tokenizer, validation)}
    info = {
        "text": config.path or "the text that ships with Python",
        "tokenizer": tokenizer.fingerprint,
        "data": hashlib.sha256(tokens["train"].tobytes()).hexdigest()[:16],
        "train": count(train, tokens["train"]),
        "validation": count(validation, tokens["validation"]),
    }
    blocks = {name: _blocks(name, ids, config.length) for name, ids in tokens.items()}
    return TaskData(tokenizer, blocks["train"], blocks["validation"], info)


def whole_text_data(path: str, length: int, tokenizer: Tokenizer) -> TaskData:
    """All of a text to evaluate on, as blocks of tokens, and nothing to train on.

    Args:
        path: as that of `LanguageConfig`.
        length: tokens of one example.
        tokenizer: the model's; it needs an `eos_token`.

    Raises:
        DataError: a file that cannot be used, or too little text for a block.
    """
    documents = text_files(path)
    tokens = _join(tokenizer, documents)
    info = {"text": path, "tokenizer": tokenizer.fingerprint, "validation": count(documents, tokens)}
    return TaskData(tokenizer, (), _blocks("validation", tokens, length), info)


def count(documents: Sequence[Document], tokens: np.ndarray) -> Mapping[str, Any]:
    """What a mean loss per token needs to become one per byte or per word.

    With loss in nats per token: bits per byte = loss / ln 2 / bytes_per_token, perplexity per word =
    exp(loss / words_per_token).

    Returns:
        `documents`, `bytes` (of UTF-8), `words` (parted by white space), `tokens` (with the end-of-text ones), and the
        ratios `bytes_per_token` and `words_per_token`.
    """
    size = sum(len(document.text.encode()) for document in documents)
    words = sum(len(document.text.split()) for document in documents)
    return {
        "documents": len(documents),
        "bytes": size,
        "words": words,
        "tokens": len(tokens),
        "bytes_per_token": size / len(tokens),
        "words_per_token": words / len(tokens),
    }


def _join(tokenizer: Tokenizer, documents: Sequence[Document]) -> np.ndarray:
    end = np.asarray([tokenizer.special_id("eos_token")], dtype=np.int32)
    encoded = tokenizer.encode([document.text for document in documents])
    return np.concatenate([part for tokens in encoded for part in (tokens, end)])


def _blocks(name: str, tokens: np.ndarray, length: int) -> TokenBlocks:
    try:
        return TokenBlocks(tokens, length)
    except DataError:
        message = f"length: the {name} text has {len(tokens)} tokens, less than one block of {length}"
        raise DataError(f"{message}; lower length or give more text") from None
