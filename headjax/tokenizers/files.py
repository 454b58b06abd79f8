"""Tokenizers in the files of Hugging Face directories: read from any family's, written as `tokenizer.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headjax.core.errors import DataError
from headjax.storage.files import parse_json, read_document
from headjax.storage.paths import path_of
from headjax.tokenizers.sentencepiece import (
    BYTE_FALLBACK,
    LLAMA_FILE,
    MARIAN_FILES,
    byte_fallback_tokenizer,
    marian_tokenizer,
)
from headjax.tokenizers.settings import ADDED_FILE, ROLES, added_tokens, class_of, with_added, with_settings
from headjax.tokenizers.tokenizer import SPECIAL_FILE, VOCABULARY_FILE, Tokenizer, parsed, special_tokens
from headjax.tokenizers.vocabularies import BYTE_LEVEL, MERGES, VOCABULARY, byte_level_tokenizer, wordpiece_tokenizer

CONFIG_FILE = "tokenizer_config.json"
MODEL_FILE = "config.json"
WORDPIECE_FILE = "vocab.txt"

RULES: Mapping[str, Mapping[str, Any]] = {
    WORDPIECE_FILE: {
        "do_basic_tokenize": True,
        "word_tokenizer_type": "basic",  # Japanese BERTs have others
    },
    **{family: {"add_bos_token": False} for family in BYTE_LEVEL},
    "marian": {"separate_vocabs": False},
}
"""Entries of `tokenizer_config.json`, and the only values by which a file or a family's files are read."""

_OWN: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(BYTE_LEVEL, (VOCABULARY, MERGES)),
    **dict.fromkeys(BYTE_FALLBACK, (LLAMA_FILE,)),
    "marian": MARIAN_FILES,
}
"""The files, all of them needed, whose meaning depends on the model's family."""

FILES = (
    *(VOCABULARY_FILE, CONFIG_FILE, SPECIAL_FILE, ADDED_FILE, MODEL_FILE, WORDPIECE_FILE, VOCABULARY, MERGES),
    LLAMA_FILE,
    *MARIAN_FILES,
)
"""Names of the files that a tokenizer may be read from."""


def read_tokenizer(directory: str | Path) -> Tokenizer | None:
    """Read the tokenizer of a directory: `tokenizer.json`, or else the files of its family.

    Those files are `vocab.txt` (BERT's WordPiece), `vocab.json` with `merges.txt` (byte-level BPE: GPT-2, RoBERTa,
    BART), and SentencePiece's, which need the library of that name: `tokenizer.model` (Llama, Mistral), `source.spm`
    with `target.spm` and `vocab.json` (Marian). The family is the `model_type` of `config.json`. Special tokens have
    roles from `special_tokens_map.json` and `tokenizer_config.json`; what these and `added_tokens.json` add or set is
    applied as `transformers` applies it. No other files are read: save such a tokenizer as `tokenizer.json` first.

        >>> headjax.read_tokenizer("headjax/hub/demo").vocab_size
        2048

    Args:
        directory: the directory.

    Returns:
        The tokenizer; None if the directory has none of these files.

    Raises:
        DataError: a file is broken; the message starts with it.
    """
    folder = path_of(directory)
    config, companion = read_object(folder / CONFIG_FILE), read_object(folder / SPECIAL_FILE)
    model_type = str(read_object(folder / MODEL_FILE).get("model_type", ""))
    roles = special_tokens(config, folder / CONFIG_FILE, ROLES)
    roles |= special_tokens(companion, folder / SPECIAL_FILE, ROLES)
    whole = (folder / VOCABULARY_FILE).is_file()
    if whole:
        tokenizer: Tokenizer | None = Tokenizer(read_document(folder / VOCABULARY_FILE), tuple(sorted(roles.items())))
    elif (folder / WORDPIECE_FILE).is_file():
        _check_rules(folder, WORDPIECE_FILE, config)
        tokenizer, config = wordpiece_tokenizer(folder / WORDPIECE_FILE), {**config, "tokenizer_class": "BertTokenizer"}
    else:
        tokenizer = _of_family(folder, model_type, config)
    if tokenizer is None:
        return None
    parsed(tokenizer, directory)
    kind = class_of(config, model_type)
    added = added_tokens(config, companion, read_object(folder / ADDED_FILE))
    flags = not whole or (bool(kind) and "added_tokens_decoder" in config)
    if kind == "Llama" and not whole and config.get("add_prefix_space") is not False:
        kind = ""  # SentencePiece's own rules for white space, which are those of the model file

    def applied(text: str) -> str:
        return text and with_added(with_settings(text, kind, config), added, folder / CONFIG_FILE, flags=flags)

    special = tuple(sorted({**dict(tokenizer.special), **roles}.items()))
    return parsed(Tokenizer(applied(tokenizer.vocabulary), special, applied(tokenizer.target)), directory)


def open_tokenizer(path: str) -> Tokenizer:
    """Return the tokenizer of a `vocab.txt`, of a folder that holds one, or of a model directory."""
    given = path_of(path).expanduser()
    if given.is_file():
        return wordpiece_tokenizer(given)
    for folder in (given / "tokenizer", given):
        found = read_tokenizer(folder) if folder.is_dir() else None
        if found is not None:
            return found
    raise DataError(f"{path}: no tokenizer there")


def looked_for(family: str) -> tuple[str, ...]:
    """Return the files from which the tokenizer of a model of this `model_type` may be built."""
    return (VOCABULARY_FILE, WORDPIECE_FILE, *_OWN.get(family, ()))


def _of_family(folder: Path, family: str, config: Mapping[str, Any]) -> Tokenizer | None:
    """Return the tokenizer of the family's own files; None if one is missing."""
    files = _OWN.get(family, ())
    if not files or not all((folder / name).is_file() for name in files):
        return None
    _check_rules(folder, family, config)
    if family in BYTE_LEVEL:
        return byte_level_tokenizer(folder, family)
    if family in BYTE_FALLBACK:
        ends = {"start": bool(config.get("add_bos_token", True)), "end": bool(config.get("add_eos_token", False))}
        return byte_fallback_tokenizer(folder / files[0], **ends)
    return marian_tokenizer(folder)


def write_tokenizer(
    tokenizer: Tokenizer, directory: str | Path, max_length: int | None = None, *, segments: bool = False
) -> None:
    """Write the files from which `transformers` builds the same tokenizer."""
    tokenizer.save(directory)
    # The default of `transformers` depends on its version, and a model that misses types reads a pair as one text.
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **dict(tokenizer.special)}
    config["model_input_names"] = ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"]
    if max_length is not None:
        config["model_max_length"] = max_length
    (path_of(directory) / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _check_rules(folder: Path, kind: str, config: Mapping[str, Any]) -> None:
    for name, usual in RULES.get(kind, {}).items():
        if config.get(name, usual) != usual:
            asked = f"{name} is {config[name]}"
            raise DataError(f"{folder / CONFIG_FILE}: {asked}; save the tokenizer as {VOCABULARY_FILE}")


def read_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one without the file."""
    if not file.exists():
        return {}
    data = parse_json(read_document(file), str(file))
    if not isinstance(data, dict):
        raise DataError(f"{file}: not a JSON object")
    return data
