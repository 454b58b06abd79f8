"""Tokenizers made of words: learned from texts, of BERT's `vocab.txt`, or of Marian's SentencePiece models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headjax.core.errors import DataError, require
from headjax.storage.files import parse_json, read_bytes, read_text
from headjax.storage.paths import path_of
from headjax.tokenizers.tokenizer import END_OF_TEXT, Tokenizer, library_errors


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learn a byte-level byte-pair encoding from texts (Sennrich et al. 2016; over bytes as in GPT-2).

    All 256 bytes are tokens, so any text is encoded and decoded without loss. The same texts give the same tokenizer.
    `vocab_size` counts the bytes, the end-of-text token and the learned merges.

        >>> headjax.train_bpe(["the heads, the heads"] * 2, vocab_size=260).vocab_size
        260
    """
    import tokenizers

    asks = f"must be at least 257 (bytes and end of text) and below 2**24, got {vocab_size}"
    require(257 <= vocab_size < 2**24, "vocab_size", asks)  # the library reserves the memory of all tokens at once
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    if (learned := backend.get_vocab_size()) < vocab_size:
        hint = "lower vocab_size, give more text or take the bytes tokenizer"
        raise DataError(f"vocab_size: the text yields only {learned} tokens, not {vocab_size}; {hint}")
    return Tokenizer(backend.to_str(), (("eos_token", END_OF_TEXT),))


def byte_tokenizer() -> Tokenizer:
    """Return the tokenizer whose tokens are UTF-8 bytes: id = byte, and 256 ends a text.

    >>> headjax.byte_tokenizer().prompt_ids("head")
    [104, 101, 97, 100]
    """
    import tokenizers

    # The character of a byte is itself where it prints in Latin-1, else the next one from U+0100.
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    printed = {ord(character) for character in alphabet}
    vocabulary = dict(zip(alphabet, sorted(range(256), key=lambda byte: byte not in printed), strict=True))
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens([END_OF_TEXT])
    return Tokenizer(backend.to_str(), (("eos_token", END_OF_TEXT),))


TRAINERS: Mapping[str, Callable[[Iterable[str], int], Tokenizer]] = {
    "bpe": train_bpe,
    "bytes": lambda texts, vocab_size: byte_tokenizer(),
}
"""Functions from (training texts, vocabulary size) to a tokenizer, by name. A new algorithm is a new entry."""


WORDPIECE_SPECIAL = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "mask", "pad", "sep", "unk")}
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
    import tokenizers

    vocabulary = {piece: line for line, piece in reversed(list(enumerate(pieces)))}
    for line, piece in enumerate(pieces):
        if vocabulary[piece] != line:
            raise DataError(f"{source}: line {line + 1}: {piece!r} also stands in line {vocabulary[piece] + 1}")
    for token in WORDPIECE_SPECIAL.values():
        if token not in vocabulary:
            raise DataError(f"{source}: no {token}, so it is not the vocabulary of a BERT")
    lowercase = all(piece == piece.lower() or piece.startswith("[") for piece in pieces)
    backend = tokenizers.BertWordPieceTokenizer(vocabulary, lowercase=lowercase)
    return Tokenizer(backend.to_str(), tuple(sorted(WORDPIECE_SPECIAL.items())))


# OPUS-MT models (Marian), which `transformers` runs on SentencePiece rather than `tokenizers`: text is split as the
# optional library `sentencepiece` splits it.

_MARIAN_SPECIAL = ("</s>", "<pad>", "<unk>")
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # types of pieces in a model file
_UNREACHABLE = -100.0  # added to the score of pieces that are never used; other scores lie between -20 and 0


def marian_tokenizer(folder: Path) -> tuple[str, str]:
    """Return two `tokenizer.json`: of `source.spm` and, unless they are equal, of `target.spm`.

    Ids are those of `vocab.json`. A piece that it lacks is never used; Hugging Face's tokenizer makes it unknown. A
    language's code (`>>fra<<`) at the start of a text is one token.
    """
    file = folder / "vocab.json"
    numbers = parse_json(read_text(file), str(file))
    if not isinstance(numbers, dict) or not all(type(number) is int for number in numbers.values()):
        raise DataError(f"{file}: not a JSON object of tokens and their ids")
    ordered = sorted(numbers, key=numbers.__getitem__)
    if [numbers[token] for token in ordered] != list(range(len(ordered))):
        raise DataError(f"{file}: its ids are not 0 to {len(ordered) - 1}")
    for token in sorted({*_MARIAN_SPECIAL} - numbers.keys()):
        raise DataError(f"{file}: no {token}")
    source, target = (_side(folder / name, ordered) for name in ("source.spm", "target.spm"))
    return source, target if target != source else ""


def _side(file: Path, ordered: Sequence[str]) -> str:
    """Return the `tokenizer.json` of one language: a unigram model (Kudo 2018)."""
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers import Tokenizer as Backend

    proto: Any = sentencepiece_model_pb2.ModelProto.FromString(read_bytes(file))
    trained, rules = proto.trainer_spec, proto.normalizer_spec
    usual = rules.add_dummy_prefix and rules.remove_extra_whitespaces and rules.escape_whitespaces
    if trained.model_type != trained.UNIGRAM or trained.byte_fallback or not usual:
        raise DataError(f"{file}: its rules are not those of Marian's models; save it as tokenizer.json")
    highest = max((piece.score for piece in proto.pieces if piece.type == _NORMAL), default=0.0)
    scores: dict[str, float] = {}
    for piece in proto.pieces:
        scores[piece.piece] = piece.score + _UNREACHABLE * (piece.type in (_UNKNOWN, _CONTROL))
        if piece.type == _USER_DEFINED:  # before any other split, as in the library
            scores[piece.piece] = len(piece.piece.encode()) * highest - 0.1
    with library_errors(str(file)):
        vocabulary = [(token, scores.get(token, _UNREACHABLE)) for token in ordered]
        backend = Backend(models.Unigram(vocabulary, unk_id=ordered.index("<unk>"), byte_fallback=False))
        charsmap = rules.precompiled_charsmap
        backend.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap)] if charsmap else [])
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    end = [("</s>", ordered.index("</s>"))]
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A $B </s>", special_tokens=end)
    backend.add_special_tokens(list(_MARIAN_SPECIAL))
    codes = [token for token in ordered if token.startswith(">>") and token.endswith("<<")]
    backend.add_tokens([AddedToken(code, normalized=False) for code in codes])
    return str(backend.to_str())
