"""SentencePiece's model files: their message, read by the optional `sentencepiece` library, and their pieces."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headjax.core.errors import DataError
from headjax.tokenizers.tokenizer import library_errors

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

SPACE = "▁"
"""The character that SentencePiece writes for a space."""

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
"""Types of pieces in a model file."""

UNREACHABLE = -100.0
"""Added to the score of pieces that are never used; other scores lie between -20 and 0."""


def unigram(
    name: str,
    proto: Any,
    vocabulary: Sequence[tuple[str, float]],
    unknown: str,
) -> Backend:
    """Build the `tokenizers` library's tokenizer of a unigram model."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    number = next(number for number, (token, _) in enumerate(vocabulary) if token == unknown)
    charsmap = proto.normalizer_spec.precompiled_charsmap
    with library_errors(name):
        backend = Backend(models.Unigram(list(vocabulary), unk_id=number, byte_fallback=False))
        backend.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap)] if charsmap else [])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, prepend_scheme="always")]
    )
    backend.decoder = decoders.Metaspace(SPACE, prepend_scheme="always")
    return backend


def add_template(name: str, backend: Backend, single: Sequence[str], pair: Sequence[str]) -> None:
    """Add a template that joins texts and pairs with special tokens; empty `single` adds nothing."""
    from tokenizers import processors

    added = sorted({part.partition(":")[0] for part in (*single, *pair) if not part.startswith("$")})
    for token in added:
        if backend.token_to_id(token) is None:
            raise DataError(f"{name}: no piece {token}, with which the family joins texts")
    if single:
        backend.post_processor = processors.TemplateProcessing(
            single=list(single),
            pair=list(pair),
            special_tokens=[(token, backend.token_to_id(token)) for token in added],
        )


def parse_model(name: str, data: bytes, model_type: str = "unigram") -> Any:
    """Parse a model file: `unigram`, or `bpe` for pairs that fall back to bytes and keep white space (Llama)."""
    sentencepiece_library()
    from google.protobuf.message import DecodeError

    messages: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    proto = messages.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        proto.Clear()
    if not proto.pieces or not all(isinstance(piece.piece, str) for piece in proto.pieces):  # bytes where not UTF-8
        raise DataError(f"{name}: not a SentencePiece model")
    trained, rules = proto.trainer_spec, proto.normalizer_spec
    pairs = model_type == "bpe"
    if trained.model_type != (trained.BPE if pairs else trained.UNIGRAM) or trained.byte_fallback != pairs:
        wanted = "byte pairs with byte fallback" if pairs else "unigram models without byte fallback"
        raise DataError(f"{name}: only {wanted} are read here; save it as tokenizer.json")
    usual = rules.add_dummy_prefix and rules.remove_extra_whitespaces != pairs and rules.escape_whitespaces
    if not usual or trained.treat_whitespace_as_suffix or (pairs and rules.precompiled_charsmap):
        raise DataError(f"{name}: its rules for white space are not supported; save it as tokenizer.json")
    return proto


def piece_scores(name: str, proto: Any) -> list[tuple[str, float]]:
    """Return the pieces with the scores by which the library splits text."""
    for piece in proto.pieces:
        if not math.isfinite(piece.score):
            raise DataError(f"{name}: piece {piece.piece!r} has the score {piece.score}")
    highest = max((piece.score for piece in proto.pieces if piece.type == NORMAL), default=0.0)

    def score(piece: Any) -> float:
        if piece.type == USER_DEFINED:  # before any other split, as in the library
            return float(len(piece.piece.encode()) * highest - 0.1)
        return float(piece.score + UNREACHABLE * (piece.type in (UNKNOWN, CONTROL)))

    return [(piece.piece, score(piece)) for piece in proto.pieces]


def sentencepiece_library() -> Any:
    """Return the `sentencepiece` module."""
    try:
        import sentencepiece
    except ImportError:
        raise DataError("sentencepiece: not installed: pip install '.[sentencepiece]' from a checkout") from None
    return sentencepiece
