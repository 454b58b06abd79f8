"""Tokenizers from plain vocabulary files: BERT's `vocab.txt`, and GPT-2's `vocab.json` with `merges.txt`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headjax.core.errors import DataError
from headjax.storage.files import parse_json, read_text
from headjax.storage.paths import path_of
from headjax.tokenizers.tokenizer import END_OF_TEXT, Tokenizer, library_errors

WORDPIECE_SPECIAL = {
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
    "pad_token": "[PAD]",
    "sep_token": "[SEP]",
    "unk_token": "[UNK]",
}
"""BERT's special tokens by role."""


def wordpiece_tokenizer(path: str | Path, *, lowercase: bool | None = None) -> Tokenizer:
    """Read a WordPiece vocabulary as BERT does (Devlin et al. 2019): longest pieces first, `##` inside words.

    Control characters are dropped, white space is made spaces, every CJK character is a word, and for lower-cased
    vocabularies (`lowercase`; None says yes unless a piece has a capital) letters lose their case and accents.
    """
    file = path_of(path).expanduser()
    return wordpiece_of(read_text(file).removesuffix("\n").split("\n"), str(file), lowercase=lowercase)


def wordpiece_of(pieces: Sequence[str], source: str, *, lowercase: bool | None = None) -> Tokenizer:
    """Return the tokenizer of a list of WordPiece pieces, in the order of their ids."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    vocabulary = {piece: line for line, piece in reversed(list(enumerate(pieces)))}
    for line, piece in enumerate(pieces):
        if vocabulary[piece] != line:
            raise DataError(f"{source}: line {line + 1}: {piece!r} also stands in line {vocabulary[piece] + 1}")
    for token in WORDPIECE_SPECIAL.values():
        if token not in vocabulary:
            raise DataError(f"{source}: no {token}, so it is not the vocabulary of a BERT")
    backend = Backend(models.WordPiece(vocab=vocabulary, unk_token=WORDPIECE_SPECIAL["unk_token"]))
    if lowercase is None:
        lowercase = all(piece == piece.lower() or piece.startswith("[") for piece in pieces)
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(list(WORDPIECE_SPECIAL.values()))
    return Tokenizer(backend.to_str(), tuple(sorted(WORDPIECE_SPECIAL.items())))


VOCABULARY, MERGES = "vocab.json", "merges.txt"

ROBERTA_SPECIAL = {
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
    "roberta": ROBERTA_SPECIAL,
    "bart": ROBERTA_SPECIAL,
}
"""Special tokens by role, by Hugging Face's `model_type`."""


def byte_level_tokenizer(folder: str | Path, family: str) -> Tokenizer:
    """Read a byte-pair encoding over bytes (Radford et al. 2019) from `vocab.json` and `merges.txt`.

    RoBERTa's texts become `<s> text </s>`, pairs `<s> first </s></s> second </s>`; GPT-2 adds nothing.
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, processors

    file, special = path_of(folder) / VOCABULARY, BYTE_LEVEL[family]
    vocabulary = read_vocabulary(file)
    for token in sorted(set(special.values()) - vocabulary.keys()):
        raise DataError(f"{file}: no {token}, so it is not the vocabulary of a {family}")
    lines = read_text(path_of(folder) / MERGES).split("\n")
    merges: Any = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    with library_errors(str(path_of(folder) / MERGES)):
        backend = Backend(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if "sep_token" in special:
        end, start = ((special[role], vocabulary[special[role]]) for role in ("sep_token", "cls_token"))
        backend.post_processor = processors.RobertaProcessing(end, start, trim_offsets=True, add_prefix_space=False)
    backend.add_special_tokens(sorted(set(special.values())))
    return Tokenizer(backend.to_str(), tuple(sorted(special.items())))


def read_vocabulary(file: Path) -> dict[str, int]:
    """Read tokens and their ids from a `vocab.json`."""
    vocabulary = parse_json(read_text(file), str(file))
    if not isinstance(vocabulary, dict) or not all(type(number) is int for number in vocabulary.values()):
        raise DataError(f"{file}: not a JSON object of tokens and their ids")
    return vocabulary
