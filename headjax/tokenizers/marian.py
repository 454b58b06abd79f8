"""The tokenizer of OPUS-MT models (Marian), which `transformers` runs on SentencePiece rather than `tokenizers`.

Text is split as the optional library `sentencepiece` splits it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headjax.core.errors import DataError
from headjax.storage.files import parse_json, read_bytes, read_text
from headjax.tokenizers.tokenizer import library_errors

MARIAN_FILES = ("source.spm", "target.spm", "vocab.json")

SPECIAL = ("</s>", "<pad>", "<unk>")

SPACE = "▁"
"""The character that SentencePiece writes for a space."""

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
"""Types of pieces in a model file."""

UNREACHABLE = -100.0
"""Added to the score of pieces that are never used; other scores lie between -20 and 0."""


def marian_tokenizer(folder: Path) -> tuple[str, str]:
    """Return two `tokenizer.json`: of `source.spm` and, unless they are equal, of `target.spm`.

    Ids are those of `vocab.json`. A piece that it lacks is never used; Hugging Face's tokenizer makes it unknown. A
    language's code (`>>fra<<`) at the start of a text is one token.
    """
    source_file, target_file, file = (folder / name for name in MARIAN_FILES)
    numbers = parse_json(read_text(file), str(file))
    if not isinstance(numbers, dict) or not all(type(number) is int for number in numbers.values()):
        raise DataError(f"{file}: not a JSON object of tokens and their ids")
    ordered = sorted(numbers, key=numbers.__getitem__)
    if [numbers[token] for token in ordered] != list(range(len(ordered))):
        raise DataError(f"{file}: its ids are not 0 to {len(ordered) - 1}")
    for token in sorted({*SPECIAL} - numbers.keys()):
        raise DataError(f"{file}: no {token}")
    source, target = (_side(path, ordered) for path in (source_file, target_file))
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
    scores = _scores(proto)
    charsmap = proto.normalizer_spec.precompiled_charsmap
    with library_errors(str(file)):
        vocabulary = [(token, scores.get(token, UNREACHABLE)) for token in ordered]
        unknown = ordered.index("<unk>")
        backend = Backend(models.Unigram(vocabulary, unk_id=unknown, byte_fallback=False))
        backend.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap)] if charsmap else [])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, prepend_scheme="always")]
    )
    backend.decoder = decoders.Metaspace(SPACE, prepend_scheme="always")
    end = [("</s>", ordered.index("</s>"))]
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A $B </s>", special_tokens=end)
    backend.add_special_tokens(list(SPECIAL))
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
