"""Tokenizers of a list of WordPiece pieces, as in BERT's `vocab.txt`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headjax.core.errors import DataError
from headjax.storage.files import read_text
from headjax.storage.paths import path_of
from headjax.tokenizers.tokenizer import Tokenizer

WORDPIECE_SPECIAL = {
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
    "pad_token": "[PAD]",
    "sep_token": "[SEP]",
    "unk_token": "[UNK]",
}
"""BERT's special tokens by role."""


def wordpiece_tokenizer(path: str | Path) -> Tokenizer:
    """Read a WordPiece vocabulary as BERT does (Devlin et al. 2019): longest pieces first, `##` inside words.

    Control characters are dropped, white space is made spaces, every CJK character is a word, and for lower-cased
    vocabularies (those whose pieces have no capitals) letters lose their case and accents.
    """
    file = path_of(path).expanduser()
    return wordpiece_of(read_text(file).removesuffix("\n").split("\n"), str(file))


def wordpiece_of(pieces: Sequence[str], source: str) -> Tokenizer:
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
