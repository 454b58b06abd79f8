"""Byte-level BPE from the two files in which GPT-2 and RoBERTa keep it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from headjax.core.errors import DataError
from headjax.data.text_files import read_text
from headjax.data.tokenizers import END_OF_TEXT, Tokenizer

VOCABULARY, MERGES = "vocab.json", "merges.txt"

ROBERTA = {
    "bos_token": "<s>",
    "cls_token": "<s>",
    "eos_token": "</s>",
    "mask_token": "<mask>",
    "pad_token": "<pad>",
    "sep_token": "</s>",
    "unk_token": "<unk>",
}

BYTE_LEVEL: Mapping[str, Mapping[str, str]] = {
    "gpt2": dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT),
    "roberta": ROBERTA,
    "bart": ROBERTA,
}
"""Special tokens by role, by Hugging Face's `model_type`."""


def byte_level_tokenizer(folder: str | Path, family: str) -> Tokenizer:
    """Byte-pair encoding over bytes (Radford et al. 2019) from `vocab.json` and `merges.txt`.

    RoBERTa's texts become `<s> text </s>`, pairs `<s> first </s></s> second </s>`; GPT-2 adds nothing.

    Args:
        folder: where the files are.
        family: a name of `BYTE_LEVEL`.

    Raises:
        DataError: a file that cannot be used, or a special token that the vocabulary lacks; the message starts with the
            file.
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, processors

    file, special = Path(folder) / VOCABULARY, BYTE_LEVEL[family]
    vocabulary = read_vocabulary(file)
    for token in sorted(set(special.values()) - vocabulary.keys()):
        raise DataError(f"{file}: no {token}, so it is not the vocabulary of a {family}")
    merges = _merges(Path(folder) / MERGES)
    try:
        backend = Backend(models.BPE(vocab=vocabulary, merges=merges))
    except Exception as error:  # the library raises plain Exception
        raise DataError(f"{Path(folder) / MERGES}: {' '.join(str(error).split())}") from None
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if "sep_token" in special:
        end, start = ((special[role], vocabulary[special[role]]) for role in ("sep_token", "cls_token"))
        backend.post_processor = processors.RobertaProcessing(end, start, trim_offsets=True, add_prefix_space=False)
    backend.add_special_tokens(sorted(set(special.values())))
    return Tokenizer(backend.to_str(), tuple(sorted(special.items())))


def read_vocabulary(file: Path) -> dict[str, int]:
    """Tokens and their numbers from a `vocab.json`.

    Raises:
        DataError: it is none; the message starts with the file.
    """
    try:
        vocabulary = json.loads(read_text(file))
    except ValueError:
        vocabulary = None
    if not isinstance(vocabulary, dict) or not all(isinstance(number, int) for number in vocabulary.values()):
        raise DataError(f"{file}: not a JSON object of tokens and their numbers")
    return vocabulary


def _merges(file: Path) -> list[tuple[str, str]]:
    merges = []
    for number, line in enumerate(read_text(file).split("\n"), start=1):
        if not line or line.startswith("#version"):
            continue
        first, _, second = line.partition(" ")
        if not first or not second or " " in second:
            raise DataError(f"{file}: line {number}: expected two tokens, got {line!r}")
        merges.append((first, second))
    return merges
