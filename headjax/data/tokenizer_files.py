"""Tokenizers from the files of Hugging Face directories, or learned."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headjax.core.errors import DataError, require
from headjax.core.serialize import unknown_name
from headjax.data.tokenizers import SPECIAL_FILE, TRAINERS, VOCABULARY_FILE, Tokenizer

CONFIG_FILE = "tokenizer_config.json"
MODEL_FILE = "config.json"
WORDPIECE_FILE = "vocab.txt"

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Special tokens that a tokenizer's files may name."""


def read_tokenizer(directory: str | Path) -> Tokenizer | None:
    """The tokenizer of a directory: `tokenizer.json`, or else what is built of the files of its family.

    Those are `vocab.txt` (BERT's WordPiece), `vocab.json` with `merges.txt` (byte-level BPE: GPT-2, RoBERTa, BART), and
    SentencePiece's, which need the library of that name: `spiece.model` (T5, ALBERT), `sentencepiece.bpe.model`
    (XLM-RoBERTa, CamemBERT), `tokenizer.model` (Llama, Mistral), `source.spm` with `target.spm` and `vocab.json`
    (Marian). The family is the `model_type` in `config.json`. Special tokens get their roles from
    `special_tokens_map.json` and `tokenizer_config.json`. Other files are not read; save the tokenizer as
    `tokenizer.json` first.

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
    return _of_family(folder, str(_object(folder / MODEL_FILE).get("model_type", "")), config)


def _of_family(folder: Path, family: str, config: Mapping[str, Any]) -> Tokenizer | None:
    """The tokenizer built of files that only a family's name gives a meaning to."""
    from headjax.data import byte_fallback_files, byte_level_files, marian_files
    from headjax.data.sentencepiece_files import DIALECTS, sentencepiece_tokenizer

    def there(*names: str) -> bool:
        return all((folder / name).is_file() for name in names)

    if family in DIALECTS and there(DIALECTS[family].file):
        return sentencepiece_tokenizer(folder / DIALECTS[family].file, family)
    if family in byte_level_files.BYTE_LEVEL and there(byte_level_files.VOCABULARY, byte_level_files.MERGES):
        return byte_level_files.byte_level_tokenizer(folder, family)
    if family in byte_fallback_files.FAMILIES and there(byte_fallback_files.FILE):
        ends = {"start": bool(config.get("add_bos_token", True)), "end": bool(config.get("add_eos_token", False))}
        return byte_fallback_files.byte_fallback_tokenizer(folder / byte_fallback_files.FILE, **ends)
    if family == "marian" and there(marian_files.SOURCE, marian_files.TARGET, marian_files.VOCABULARY):
        return marian_files.marian_tokenizer(folder)
    return None


def check_tokenizer(name: str) -> None:
    """Raises `ConfigError` for what is neither a name of `TRAINERS` nor a folder."""
    known = name in TRAINERS or Path(name).expanduser().is_dir()
    require(known, "tokenizer", f"{unknown_name('tokenizer', name, TRAINERS)}, and no folder of that name is there")


def make_tokenizer(name: str, texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A tokenizer learned from texts, or read from a folder.

    Args:
        name: a name of `TRAINERS`, or the folder.
        texts: what to learn from.
        vocab_size: number of tokens to learn.

    Raises:
        DataError: the folder holds no tokenizer that can be read, or the texts do not yield so many tokens.
    """
    if name in TRAINERS:
        return TRAINERS[name](texts, vocab_size)
    found = read_tokenizer(Path(name).expanduser())
    if found is None:
        raise DataError(f"{name}: no tokenizer files in this folder")
    return found


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
