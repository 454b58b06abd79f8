"""Tokenizers of Hugging Face directories: what `AutoTokenizer` of `transformers` makes of their files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

from headjax.core.errors import DataError
from headjax.storage.files import read_document
from headjax.storage.paths import copy_file, is_bucket, path_of
from headjax.tokenizers.tokenizer import (
    CONFIG_FILE,
    SPECIAL_FILE,
    TARGET_FILE,
    VOCABULARY_FILE,
    Tokenizer,
    library_errors,
    object_of,
)
from headjax.tokenizers.vocabularies import marian_tokenizer, wordpiece_tokenizer

MODEL_FILE = "config.json"
VOCABULARIES = (
    *(VOCABULARY_FILE, "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model"),
    *("spm.model", "source.spm", "tekken.json"),
)
"""Names of the files that hold a vocabulary; a directory without any has no tokenizer."""

FILES = (*VOCABULARIES, "merges.txt", "target.spm", CONFIG_FILE, SPECIAL_FILE, TARGET_FILE, "added_tokens.json")
"""Names of all files of a tokenizer."""

_ANY_CLASS = (VOCABULARY_FILE, "tokenizer.model", "tekken.json")  # read for every class, whatever files it names
_SETTINGS = (
    *("model_max_length", "padding_side", "truncation_side", "model_input_names", "clean_up_tokenization_spaces"),
    *("split_special_tokens", "extra_special_tokens", "chat_template"),
)
"""Attributes of a tokenizer of `transformers`, as `tokenizer_config.json` names them."""

GENERIC_CLASS = "PreTrainedTokenizerFast"
"""The class that takes `tokenizer.json` as it is: `TokenizersBackend` in `transformers` 5, which knows both names."""

WAY_OUT = "write tokenizer.json with save_pretrained of a tokenizer that transformers reads"


def read_tokenizer(directory: str | Path) -> Tokenizer | None:
    """Read the tokenizer of a Hugging Face directory with `transformers.AutoTokenizer`.

    Its backend is kept, a value of the `tokenizers` library, so that `transformers` is used here alone. Code of the
    directory is never run. Files of SentencePiece (`*.model`, `*.spm`) need the library of that name.

        >>> headjax.read_tokenizer("headjax/hub/demo").vocab_size
        2048

    Returns:
        The tokenizer; None if the directory has no vocabulary.

    Raises:
        DataError: `transformers` cannot read the tokenizer, or only by code of the directory.
    """
    folder = path_of(directory)
    if not any((folder / name).is_file() for name in VOCABULARIES):
        return None
    with contextlib.ExitStack() as stack:
        place = folder
        if is_bucket(folder):
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            for name in (name for name in (*FILES, MODEL_FILE) if (folder / name).is_file()):
                copy_file(folder / name, place / name)
        theirs = _auto_tokenizer(place, directory)
        kind = type(theirs).__name__
        special = dict(theirs.special_tokens_map)
        settings = {name: getattr(theirs, name, None) for name in _SETTINGS}
        known = {name: value for name, value in settings.items() if value is not None}
        text = json.dumps({"tokenizer_class": GENERIC_CLASS, **known, **special}, indent=2)
        shared: Any = {"special": tuple(sorted(special.items())), "settings": text}
        if kind == "MarianTokenizer":
            source, target = marian_tokenizer(place)
            return Tokenizer(source, target=target, **shared)
        if not getattr(theirs, "is_fast", False):
            raise DataError(f"{directory}: {kind} of transformers does not run on the tokenizers library; {WAY_OUT}")
        backend = theirs.backend_tokenizer
        backend.no_truncation()  # their sides are among the settings
        backend.no_padding()
        second = place / TARGET_FILE
        return Tokenizer(backend.to_str(), target=read_document(second) if second.is_file() else "", **shared)


def _auto_tokenizer(folder: Path, named: str | Path) -> Any:
    """Return the tokenizer of `transformers`; errors name the directory, or its file that is no JSON.

    No warning or log is shown: of a missing PyTorch, and of configs of models that are not loaded here.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), library_errors(f"{named}: AutoTokenizer of transformers"):
            warnings.simplefilter("ignore")
            from transformers import AutoTokenizer

            theirs = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except DataError as error:
        for name in (CONFIG_FILE, SPECIAL_FILE, "added_tokens.json", VOCABULARY_FILE, MODEL_FILE):
            read_object(path_of(named) / name)
        message = str(error)
        if "trust_remote_code" in message:
            raise DataError(f"{named}: its tokenizer is code of the directory, which is not run; {WAY_OUT}") from None
        raise DataError(f"{message[:300]}; {WAY_OUT}, or pip install sentencepiece for its model files") from None
    finally:
        logging.disable(before)
    reads = {*type(theirs).vocab_files_names.values(), *_ANY_CLASS} - {None}
    if not any((folder / name).is_file() for name in reads):  # transformers makes an empty vocabulary
        files = " or ".join(sorted({*reads} - {*_ANY_CLASS[1:]}))
        raise DataError(f"{named}: {type(theirs).__name__} of transformers reads {files}, which is not there")
    return theirs


def open_tokenizer(path: str) -> Tokenizer:
    """Return the tokenizer of a `vocab.txt`, of a model directory, or of a folder that `AutoTokenizer` reads."""
    folder = path_of(path).expanduser()
    if folder.is_file():
        return wordpiece_tokenizer(folder)
    if (folder / "tokenizer" / VOCABULARY_FILE).is_file():
        return Tokenizer.load(folder / "tokenizer")
    tokenizer = read_tokenizer(folder) if folder.is_dir() else None
    if tokenizer is None:
        raise DataError(f"{path}: no tokenizer there")
    return tokenizer


def write_tokenizer(
    tokenizer: Tokenizer, directory: str | Path, max_length: int | None = None, *, segments: bool = False
) -> None:
    """Write the files from which `AutoTokenizer` reads the same tokenizer under any `model_type` but Qwen2's."""
    settings = tokenizer.settings
    if not settings:
        # The default of `transformers` depends on its version, and a model that misses types reads a pair as one text.
        names = ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"]
        config = {"tokenizer_class": GENERIC_CLASS, **dict(tokenizer.special), "model_input_names": names}
        settings = json.dumps(config | ({} if max_length is None else {"model_max_length": max_length}), indent=2)
    Tokenizer(tokenizer.vocabulary, tokenizer.special, tokenizer.target, settings).save(directory)


def digest(tokenizer: Tokenizer | None, model_type: Any) -> str:
    """Return a hash of a tokenizer and of the `model_type` under which files mean it; empty without a tokenizer."""
    if tokenizer is None:
        return ""
    parts = [tokenizer.vocabulary, tokenizer.special, tokenizer.target, tokenizer.settings, model_type]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def read_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one without the file."""
    return object_of(read_document(file), file) if file.exists() else {}
