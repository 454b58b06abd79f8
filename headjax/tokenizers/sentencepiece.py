"""Tokenizers of SentencePiece's model files, read by the optional `sentencepiece` library: Llama's and Marian's.

Text is split as the library splits it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headjax.core.errors import DataError
from headjax.storage.files import read_bytes
from headjax.storage.paths import path_of
from headjax.tokenizers.settings import SPACE
from headjax.tokenizers.tokenizer import Tokenizer, library_errors
from headjax.tokenizers.vocabularies import read_vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

LLAMA_FILE = "tokenizer.model"

BYTE_FALLBACK = ("llama", "mistral")
"""Hugging Face's `model_type`s that keep such a file."""

LLAMA_SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

MARIAN_FILES = ("source.spm", "target.spm", "vocab.json")

MARIAN_SPECIAL = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
"""Types of pieces in a model file."""

UNREACHABLE = -100.0
"""Added to the score of pieces that are never used; other scores lie between -20 and 0."""


def byte_fallback_tokenizer(path: str | Path, *, start: bool = True, end: bool = False) -> Tokenizer:
    """Read the tokenizer of a SentencePiece model of byte pairs whose unknown characters are UTF-8 bytes (`<0x0A>`).

    The tokenizer splits text as the library does, behind an added space. One exception: where two neighbouring pairs
    make the same piece, the library takes the left one. `start` and `end` say whether texts get `<s>` and `</s>`.
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers

    file = path_of(path).expanduser()
    proto = _parse_model(file, "bpe")
    numbers = {piece.piece: number for number, piece in enumerate(proto.pieces)}
    with library_errors(str(file)):
        backend = Backend(models.BPE(vocab=numbers, merges=_merges(proto, numbers), fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    first, second = (["<s>"] * start + [text] + ["</s>"] * end for text in ("$A", "$B"))
    if start or end:
        _add_template(file, backend, first, first + second)
    backend.add_special_tokens([piece.piece for piece in proto.pieces if piece.type in (UNKNOWN, CONTROL)])
    special = tuple(sorted((role, token) for role, token in LLAMA_SPECIAL.items() if token in numbers))
    return Tokenizer(backend.to_str(), special)


def _merges(proto: Any, numbers: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return every pair of pieces that together are a piece, those with higher scores first, as the library merges."""
    found: list[tuple[float, str, str]] = []
    reachable = {piece.piece for piece in proto.pieces if piece.type == NORMAL}
    for piece in (piece for piece in proto.pieces if piece.piece in reachable):
        for cut in range(1, len(piece.piece)):
            left, right = piece.piece[:cut], piece.piece[cut:]
            if left in reachable and right in reachable:
                found.append((-piece.score, left, right))
    found.sort(key=lambda merge: (merge[0], numbers[merge[1]], numbers[merge[2]]))
    return [(left, right) for _, left, right in found]


def marian_tokenizer(folder: str | Path) -> Tokenizer:
    """Read the tokenizer of an OPUS-MT model: `source.spm` splits the source language, `target.spm` the target.

    Ids are those of `vocab.json`. A piece that it lacks is never used; Hugging Face's tokenizer makes it unknown. A
    language's code (`>>fra<<`) at the start of a text is one token.
    """
    source_file, target_file, file = (path_of(folder) / name for name in MARIAN_FILES)
    numbers = read_vocabulary(file)
    ordered = sorted(numbers, key=numbers.__getitem__)
    if [numbers[token] for token in ordered] != list(range(len(ordered))):
        raise DataError(f"{file}: its ids are not 0 to {len(ordered) - 1}")
    source, target = (_side(path, ordered) for path in (source_file, target_file))
    return Tokenizer(source, tuple(sorted(MARIAN_SPECIAL.items())), target if target != source else "")


def _side(file: Path, ordered: Sequence[str]) -> str:
    """Return the `tokenizer.json` of one language: a unigram model (Kudo 2018)."""
    from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    proto = _parse_model(file, "unigram")
    scores = _scores(proto)
    charsmap = proto.normalizer_spec.precompiled_charsmap
    with library_errors(str(file)):
        vocabulary = [(token, scores.get(token, UNREACHABLE)) for token in ordered]
        unknown = ordered.index(MARIAN_SPECIAL["unk_token"])
        backend = Backend(models.Unigram(vocabulary, unk_id=unknown, byte_fallback=False))
        backend.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap)] if charsmap else [])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, prepend_scheme="always")]
    )
    backend.decoder = decoders.Metaspace(SPACE, prepend_scheme="always")
    _add_template(file, backend, ["$A", "</s>"], ["$A", "$B", "</s>"])
    backend.add_special_tokens(list(MARIAN_SPECIAL.values()))
    codes = [token for token in ordered if token.startswith(">>") and token.endswith("<<")]
    backend.add_tokens([AddedToken(code, normalized=False) for code in codes])
    return str(backend.to_str())


def _scores(proto: Any) -> dict[str, float]:
    """Return the scores by which the library splits text, by piece."""
    highest = max((piece.score for piece in proto.pieces if piece.type == NORMAL), default=0.0)

    def score(piece: Any) -> float:
        if piece.type == USER_DEFINED:  # before any other split, as in the library
            return float(len(piece.piece.encode()) * highest - 0.1)
        return float(piece.score + UNREACHABLE * (piece.type in (UNKNOWN, CONTROL)))

    return {piece.piece: score(piece) for piece in proto.pieces}


def _add_template(file: Path, backend: Backend, single: Sequence[str], pair: Sequence[str]) -> None:
    """Add a template that joins texts and pairs with special tokens."""
    from tokenizers import processors

    tokens = [(token, backend.token_to_id(token)) for token in sorted({*pair} - {"$A", "$B"})]
    with library_errors(f"{file}: {', '.join(token for token, _ in tokens)}"):
        backend.post_processor = processors.TemplateProcessing(
            single=list(single), pair=list(pair), special_tokens=tokens
        )


def _parse_model(file: Path, model_type: str) -> Any:
    """Parse a model file: `unigram`, or `bpe` for pairs that fall back to bytes and keep white space (Llama)."""
    try:
        messages: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    except ImportError:
        raise DataError("sentencepiece: not installed: pip install '.[sentencepiece]' from a checkout") from None
    from google.protobuf.message import DecodeError

    proto = messages.ModelProto()
    try:
        proto.ParseFromString(read_bytes(file))
    except DecodeError:
        proto.Clear()
    if not proto.pieces or not all(isinstance(piece.piece, str) for piece in proto.pieces):  # bytes where not UTF-8
        raise DataError(f"{file}: not a SentencePiece model")
    trained, rules, pairs = proto.trainer_spec, proto.normalizer_spec, model_type == "bpe"
    own = pairs and (rules.precompiled_charsmap or any(piece.type == USER_DEFINED for piece in proto.pieces))
    usual = rules.add_dummy_prefix and rules.remove_extra_whitespaces != pairs and rules.escape_whitespaces
    kind = trained.BPE if pairs else trained.UNIGRAM
    if (trained.model_type, trained.byte_fallback) != (kind, pairs) or own or not usual:
        raise DataError(f"{file}: its rules are not those of its family; save it as tokenizer.json")
    return proto
