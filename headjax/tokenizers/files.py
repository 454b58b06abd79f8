"""Tokenizers in the files of Hugging Face directories: read from any family's, written as `tokenizer.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headjax.core.errors import DataError
from headjax.core.files import check_characters, check_links, parse_json, read_document
from headjax.core.paths import path_of
from headjax.tokenizers.sentencepiece import (
    BYTE_FALLBACK,
    DIALECTS,
    LLAMA_FILE,
    MARIAN_FILES,
    byte_fallback_tokenizer,
    marian_tokenizer,
    sentencepiece_tokenizer,
)
from headjax.tokenizers.tokenizer import SPECIAL_FILE, VOCABULARY_FILE, Tokenizer
from headjax.tokenizers.vocabularies import (
    BYTE_LEVEL,
    MERGES,
    VOCABULARY,
    byte_level_tokenizer,
    wordpiece_tokenizer,
)

CONFIG_FILE = "tokenizer_config.json"
MODEL_FILE = "config.json"
WORDPIECE_FILE = "vocab.txt"

FILES = (
    *(VOCABULARY_FILE, CONFIG_FILE, SPECIAL_FILE, MODEL_FILE, WORDPIECE_FILE, VOCABULARY, MERGES, LLAMA_FILE),
    *MARIAN_FILES,
    *sorted({dialect.file for dialect in DIALECTS.values()}),
)
"""Names of the files that a tokenizer may be read from."""

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Special tokens that a tokenizer's files may name."""


def read_tokenizer(directory: str | Path) -> Tokenizer | None:
    """The tokenizer of a directory: `tokenizer.json` where there is one, else built from the files of its family.

    Those files are `vocab.txt` (BERT's WordPiece), `vocab.json` with `merges.txt` (byte-level BPE: GPT-2, RoBERTa,
    BART), and SentencePiece's, which need the library of that name: `spiece.model` (T5, ALBERT),
    `sentencepiece.bpe.model` (XLM-RoBERTa, CamemBERT), `tokenizer.model` (Llama, Mistral), `source.spm` with
    `target.spm` and `vocab.json` (Marian). The family is the `model_type` in `config.json`. Special tokens get their
    roles from `special_tokens_map.json` and `tokenizer_config.json`. No other files are read: save such a tokenizer as
    `tokenizer.json` first.

    Args:
        directory: the directory.

    Returns:
        The tokenizer, or None where the directory has none of these files.

    Raises:
        DataError: a file is broken; the message starts with it.
        CheckpointError: a file is a link out of the directory.
    """
    folder = path_of(directory)
    check_links(folder, FILES)
    config = _object(folder / CONFIG_FILE)
    roles = _roles(config, folder / CONFIG_FILE) | _roles(_object(folder / SPECIAL_FILE), folder / SPECIAL_FILE)
    if (folder / VOCABULARY_FILE).is_file():
        tokenizer = Tokenizer(_text(folder / VOCABULARY_FILE), tuple(sorted(roles.items())))
        try:
            tokenizer.backend  # noqa: B018  (parsed here, so that a broken file is named)
        except DataError as error:
            raise DataError(f"{directory}/{error}") from None
        return tokenizer
    if (folder / WORDPIECE_FILE).is_file():
        return _wordpiece(folder, config)
    return _of_family(folder, str(_object(folder / MODEL_FILE).get("model_type", "")), config)


def _of_family(folder: Path, family: str, config: Mapping[str, Any]) -> Tokenizer | None:
    """The tokenizer built from files whose meaning depends on the model's family; None without such files."""

    def present(*names: str) -> bool:
        return all((folder / name).is_file() for name in names)

    if family in DIALECTS and present(DIALECTS[family].file):
        return sentencepiece_tokenizer(folder / DIALECTS[family].file, family)
    if family in BYTE_LEVEL and present(VOCABULARY, MERGES):
        return byte_level_tokenizer(folder, family)
    if family in BYTE_FALLBACK and present(LLAMA_FILE):
        ends = {"start": bool(config.get("add_bos_token", True)), "end": bool(config.get("add_eos_token", False))}
        return byte_fallback_tokenizer(folder / LLAMA_FILE, **ends)
    if family == "marian" and present(*MARIAN_FILES):
        return marian_tokenizer(folder)
    return None


def write_tokenizer(
    tokenizer: Tokenizer, directory: str | Path, max_length: int | None = None, *, segments: bool = False
) -> None:
    """Write the files from which `transformers` builds the same tokenizer.

    Args:
        tokenizer: the tokenizer.
        directory: folder to write to.
        max_length: longest sequence of the model, in tokens; None where it is unknown.
        segments: whether the model reads `token_type_ids`. The default of `transformers` depends on its version, and a
            model that misses them reads both texts of a pair as one.
    """
    tokenizer.save(directory)
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **dict(tokenizer.special)}
    config["model_input_names"] = ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"]
    if max_length is not None:
        config["model_max_length"] = max_length
    (path_of(directory) / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _wordpiece(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    for name, usual in (("tokenize_chinese_chars", True), ("strip_accents", None)):
        if config.get(name, usual) != usual:
            raise DataError(
                f"{folder / CONFIG_FILE}: {name} is {config[name]}; save the tokenizer as {VOCABULARY_FILE}"
            )
    return wordpiece_tokenizer(folder / WORDPIECE_FILE, lowercase=bool(config.get("do_lower_case", True)))


def _roles(data: Mapping[str, Any], file: Path) -> dict[str, str]:
    """Special tokens by role; a file holds each as a string, or as an object with its options."""
    found: dict[str, str] = {}
    for role in ROLES:
        token = data.get(role)
        token = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(token, str):
            found[role] = check_characters(token, f"{file}: {role}")
    return found


def _object(file: Path) -> dict[str, Any]:
    """The JSON object in a file; empty without the file."""
    if not file.is_file():
        return {}
    data = parse_json(_text(file), str(file))
    if not isinstance(data, dict):
        raise DataError(f"{file}: not a JSON object")
    return data


def _text(file: Path) -> str:
    try:
        return read_document(file)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read: {' '.join(str(error).split())}") from None
