"""Marian's tokenizers: a SentencePiece model for each language, and one vocabulary of both."""

from __future__ import annotations

from pathlib import Path

from headjax.core.errors import DataError
from headjax.data.byte_level_files import read_vocabulary
from headjax.data.sentencepiece_files import UNREACHABLE, add_template, parse_model, piece_scores, unigram
from headjax.data.text_files import read_bytes
from headjax.data.tokenizers import Tokenizer

SOURCE, TARGET, VOCABULARY = "source.spm", "target.spm", "vocab.json"

SPECIAL = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def marian_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer of the OPUS-MT models: `source.spm` cuts what is translated, `target.spm` translations.

    Ids are those of `vocab.json`. A piece that it lacks is never cut out; Hugging Face's tokenizer makes it unknown. A
    language's code (`>>fra<<`) at the start of a text is one token.

    Args:
        folder: where the three files are.

    Raises:
        DataError: a file that cannot be used, or a vocabulary that lacks a token; the message starts with the file.
    """
    file = Path(folder) / VOCABULARY
    numbers = read_vocabulary(file)
    for token in sorted(set(SPECIAL.values()) - numbers.keys()):
        raise DataError(f"{file}: no {token}, so it is not the vocabulary of a marian")
    ordered = sorted(numbers, key=numbers.__getitem__)
    if [numbers[token] for token in ordered] != list(range(len(ordered))):
        raise DataError(f"{file}: its numbers are not those from 0 to {len(ordered) - 1}")
    source, target = (_side(Path(folder) / name, ordered) for name in (SOURCE, TARGET))
    return Tokenizer(source, tuple(sorted(SPECIAL.items())), target if target != source else "")


def _side(file: Path, ordered: list[str]) -> str:
    """The `tokenizer.json` of one language."""
    from tokenizers import AddedToken

    proto = parse_model(str(file), read_bytes(file))
    scores = dict(piece_scores(proto))
    vocabulary = [(token, scores.get(token, UNREACHABLE)) for token in ordered]
    backend = unigram(proto, vocabulary, SPECIAL["unk_token"])
    add_template(str(file), backend, ("$A", "</s>"), ("$A", "$B", "</s>"))
    backend.add_special_tokens(list(SPECIAL.values()))
    codes = [token for token in ordered if token.startswith(">>") and token.endswith("<<")]
    backend.add_tokens([AddedToken(code, normalized=False) for code in codes])
    return str(backend.to_str())
