"""Llama's and Mistral's `tokenizer.model`: byte pairs of SentencePiece that fall back to bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headjax.core.errors import DataError
from headjax.data.sentencepiece_files import (
    CONTROL,
    NORMAL,
    SPACE,
    UNKNOWN,
    USER_DEFINED,
    add_template,
    parse_model,
)
from headjax.data.text_files import read_bytes
from headjax.data.tokenizers import Tokenizer

FILE = "tokenizer.model"

FAMILIES = ("llama", "mistral")
"""Hugging Face's `model_type`s that keep such a file."""

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def byte_fallback_tokenizer(path: str | Path, *, start: bool = True, end: bool = False) -> Tokenizer:
    """The tokenizer of a SentencePiece model of byte pairs whose unknown characters are UTF-8 bytes (`<0x0A>`).

    It cuts text as the library does: a space is put before it, others stay as they are. One exception: where two
    neighbouring pairs make the same piece, the library takes the left one.

    Args:
        path: the model file.
        start, end: whether texts of examples start with `<s>` and end with `</s>`.

    Raises:
        DataError: a file that is no such model, or of a kind that is not read; or the library is not installed.
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers

    file = Path(path).expanduser()
    proto = parse_model(str(file), read_bytes(file), "bpe")
    own = next((piece.piece for piece in proto.pieces if piece.type == USER_DEFINED), None)
    if own is not None:
        raise DataError(f"{file}: it cuts {own!r} out before all others, which is not read; save it as tokenizer.json")
    numbers = {piece.piece: number for number, piece in enumerate(proto.pieces)}
    backend = Backend(models.BPE(vocab=numbers, merges=_merges(proto, numbers), fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    first, second = (tuple(["<s>"] * start + [text] + ["</s>"] * end) for text in ("$A", "$B"))
    if start or end:
        add_template(str(file), backend, first, first + second)
    backend.add_special_tokens([piece.piece for piece in proto.pieces if piece.type in (UNKNOWN, CONTROL)])
    special = tuple(sorted((role, token) for role, token in SPECIAL.items() if token in numbers))
    return Tokenizer(backend.to_str(), special)


def _merges(proto: Any, numbers: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every way to make a piece of two others; pieces with higher scores come first, as the library merges them."""
    found: list[tuple[float, str, str]] = []
    reachable = {piece.piece for piece in proto.pieces if piece.type == NORMAL}
    for piece in (piece for piece in proto.pieces if piece.piece in reachable):
        for cut in range(1, len(piece.piece)):
            left, right = piece.piece[:cut], piece.piece[cut:]
            if left in reachable and right in reachable:
                found.append((-piece.score, left, right))
    found.sort(key=lambda merge: (merge[0], numbers[merge[1]], numbers[merge[2]]))
    return [(left, right) for _, left, right in found]
