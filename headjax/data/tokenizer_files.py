"""Tokenizers from the files of Hugging Face directories."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headjax.data.tokenizers import SPECIAL_FILE, VOCABULARY_FILE, Tokenizer
from headjax.errors import DataError

CONFIG_FILE = "tokenizer_config.json"
WORDPIECE_FILE = "vocab.txt"

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Special tokens that a tokenizer's files may name."""


def read_tokenizer(directory: str | Path) -> Tokenizer | None:
    """The tokenizer of a directory: `tokenizer.json`, or WordPiece as BERT has it built of `vocab.txt`.

    Special tokens get their roles from `special_tokens_map.json` and `tokenizer_config.json`. Vocabularies in other
    formats (SentencePiece models) are not read; save the tokenizer as `tokenizer.json` first.

    Args:
        directory: the directory.

    Returns:
        The tokenizer, or None where there is none of these files.

    Raises:
        DataError: a file is broken; the message starts with it.
    """
    folder = Path(directory)
    config = _object(folder / CONFIG_FILE)
    roles = _roles(config) | _roles(_object(folder / SPECIAL_FILE))
    if (folder / VOCABULARY_FILE).is_file():
        tokenizer = Tokenizer(_text(folder / VOCABULARY_FILE), tuple(sorted(roles.items())))
        try:
            tokenizer.backend  # noqa: B018  (parsed here, so that a broken file is named)
        except DataError as error:
            raise DataError(f"{directory}/{error}") from None
        return tokenizer
    if (folder / WORDPIECE_FILE).is_file():
        return _wordpiece(folder, config)
    return None


def write_tokenizer(tokenizer: Tokenizer, directory: str | Path, max_length: int | None = None) -> None:
    """Writes the files from which `transformers` builds the same tokenizer.

    Args:
        tokenizer: the tokenizer.
        directory: where to.
        max_length: longest sequence of the model, in tokens; None is unknown.
    """
    tokenizer.save(directory)
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **dict(tokenizer.special)}
    if max_length is not None:
        config["model_max_length"] = max_length
    (Path(directory) / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _wordpiece(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    from headjax.data.wordpiece import wordpiece_tokenizer

    for name, usual in (("tokenize_chinese_chars", True), ("strip_accents", None)):
        if config.get(name, usual) != usual:
            raise DataError(
                f"{folder / CONFIG_FILE}: {name} is {config[name]}; save the tokenizer as {VOCABULARY_FILE}"
            )
    return wordpiece_tokenizer(folder / WORDPIECE_FILE, lowercase=bool(config.get("do_lower_case", True)))


def _roles(data: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens by role, each written as the token or as an object that holds it with its options."""
    found: dict[str, str] = {}
    for role in ROLES:
        token = data.get(role)
        token = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(token, str):
            found[role] = token
    return found


def _object(file: Path) -> dict[str, Any]:
    """The object in a file; empty without the file."""
    if not file.is_file():
        return {}
    try:
        data = json.loads(_text(file))
    except ValueError:
        raise DataError(f"{file}: not JSON") from None
    if not isinstance(data, dict):
        raise DataError(f"{file}: not a JSON object")
    return data


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read: {' '.join(str(error).split())}") from None
