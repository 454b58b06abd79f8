"""BERT's tokenizer from its vocabulary file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headjax.core.errors import DataError
from headjax.data.text_files import read_text
from headjax.data.tokenizers import Tokenizer

SPECIAL = {
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
    "pad_token": "[PAD]",
    "sep_token": "[SEP]",
    "unk_token": "[UNK]",
}
"""BERT's special tokens by role."""


def wordpiece_tokenizer(path: str | Path, *, lowercase: bool = True) -> Tokenizer:
    """WordPiece as BERT reads text (Devlin et al. 2019): longest pieces first, `##` before those inside a word.

    Control characters are dropped, white space is made spaces, every CJK character is a word, and for lower-cased
    vocabularies letters lose their case and accents.

    Args:
        path: a `vocab.txt`, one piece a line, the line being its id.
        lowercase: whether the vocabulary is lower-cased (`uncased`).

    Raises:
        DataError: a file that cannot be used, a piece that stands there twice, or one of `SPECIAL` that is missing.
    """
    file = Path(path).expanduser()
    return wordpiece_of(read_text(file).removesuffix("\n").split("\n"), str(file), lowercase=lowercase)


def wordpiece_of(pieces: Sequence[str], source: str, *, lowercase: bool = True) -> Tokenizer:
    """The same from the pieces themselves, in the order of their ids.

    Args:
        pieces: the vocabulary.
        source: where it is from, for messages.
        lowercase: as for `wordpiece_tokenizer`.

    Raises:
        DataError: a piece that stands there twice, or one of `SPECIAL` that is missing.
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    vocabulary = {piece: line for line, piece in reversed(list(enumerate(pieces)))}
    for line, piece in enumerate(pieces):
        if vocabulary[piece] != line:
            raise DataError(f"{source}: line {line + 1}: {piece!r} also stands in line {vocabulary[piece] + 1}")
    for token in SPECIAL.values():
        if token not in vocabulary:
            raise DataError(f"{source}: no {token}, so it is not the vocabulary of a BERT")
    backend = Backend(models.WordPiece(vocab=vocabulary, unk_token=SPECIAL["unk_token"]))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(SPECIAL[role], vocabulary[SPECIAL[role]]) for role in ("sep_token", "cls_token")]
    backend.post_processor = processors.BertProcessing(*ends)
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(list(SPECIAL.values()))
    return Tokenizer(backend.to_str(), tuple(sorted(SPECIAL.items())))
