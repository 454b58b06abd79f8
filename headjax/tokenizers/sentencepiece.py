"""Tokenizers of SentencePiece's model files: unigram models, Llama's byte pairs, Marian's two languages.

The optional `sentencepiece` library reads and trains the files. Text is split exactly as the library splits it.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headjax.core.errors import DataError, require
from headjax.storage.files import read_bytes
from headjax.storage.paths import path_of
from headjax.tokenizers.sentencepiece_model import (
    CONTROL,
    NORMAL,
    SPACE,
    UNKNOWN,
    UNREACHABLE,
    USER_DEFINED,
    add_template,
    parse_model,
    piece_scores,
    sentencepiece_library,
    unigram,
)
from headjax.tokenizers.tokenizer import Tokenizer, library_errors
from headjax.tokenizers.vocabularies import read_vocabulary

LLAMA_FILE = "tokenizer.model"

BYTE_FALLBACK = ("llama", "mistral")
"""Hugging Face's `model_type`s that keep such a file."""

LLAMA_SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

MARIAN_FILES = ("source.spm", "target.spm", "vocab.json")

MARIAN_SPECIAL = T5_SPECIAL = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def train_sentencepiece(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learn a SentencePiece unigram vocabulary (Kudo 2018) from texts, by the library's defaults.

    Text is normalised (NFKC, white space to single spaces), so unlike byte pairs it does not come back to the letter;
    every character of the texts has a piece. Special tokens are T5's: `<pad>` 0, `</s>` 1, `<unk>` 2.
    """
    library = sentencepiece_library()
    require(vocab_size >= 4, "vocab_size", f"must be at least 4 (3 special tokens), got {vocab_size}")
    written = io.BytesIO()
    try:
        library.SentencePieceTrainer.train(
            sentence_iterator=(line for text in texts for line in text.splitlines() if line.strip()),
            model_writer=written,
            vocab_size=vocab_size,
            character_coverage=1.0,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            minloglevel=2,
            max_sentence_length=2**30,  # longer lines are left out without a word
        )
    except (RuntimeError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"vocab_size: the text does not yield {vocab_size} pieces: {reason}") from None
    return unigram_tokenizer("sentencepiece", written.getvalue())


def unigram_tokenizer(name: str, data: bytes) -> Tokenizer:
    """Return the tokenizer of a unigram model (Kudo 2018) with T5's special tokens, which splits as the library does.

    Of two splits with the same score it may take either.
    """
    proto = parse_model(name, data)
    backend = unigram(name, proto, piece_scores(name, proto), T5_SPECIAL["unk_token"])
    backend.add_special_tokens([piece.piece for piece in proto.pieces if piece.type in (UNKNOWN, CONTROL)])
    return Tokenizer(backend.to_str(), tuple(sorted(T5_SPECIAL.items())))


def byte_fallback_tokenizer(path: str | Path, *, start: bool = True, end: bool = False) -> Tokenizer:
    """Read the tokenizer of a SentencePiece model of byte pairs whose unknown characters are UTF-8 bytes (`<0x0A>`).

    The tokenizer splits text as the library does, behind an added space. One exception: where two neighbouring pairs
    make the same piece, the library takes the left one. `start` and `end` say whether texts get `<s>` and `</s>`.
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers

    file = path_of(path).expanduser()
    proto = parse_model(str(file), read_bytes(file), "bpe")
    own = next((piece.piece for piece in proto.pieces if piece.type == USER_DEFINED), None)
    if own is not None:
        raise DataError(f"{file}: user-defined pieces ({own!r}) are not supported; save it as tokenizer.json")
    numbers = {piece.piece: number for number, piece in enumerate(proto.pieces)}
    with library_errors(str(file)):
        backend = Backend(models.BPE(vocab=numbers, merges=_merges(proto, numbers), fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    first, second = (tuple(["<s>"] * start + [text] + ["</s>"] * end) for text in ("$A", "$B"))
    if start or end:
        add_template(str(file), backend, first, first + second)
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
    for token in sorted(set(MARIAN_SPECIAL.values()) - numbers.keys()):
        raise DataError(f"{file}: no {token}, so it is not the vocabulary of a marian")
    ordered = sorted(numbers, key=numbers.__getitem__)
    if [numbers[token] for token in ordered] != list(range(len(ordered))):
        raise DataError(f"{file}: its ids are not 0 to {len(ordered) - 1}")
    source, target = (_side(path, ordered) for path in (source_file, target_file))
    return Tokenizer(source, tuple(sorted(MARIAN_SPECIAL.items())), target if target != source else "")


def _side(file: Path, ordered: list[str]) -> str:
    """Return the `tokenizer.json` of one language."""
    from tokenizers import AddedToken

    proto = parse_model(str(file), read_bytes(file))
    scores = dict(piece_scores(str(file), proto))
    vocabulary = [(token, scores.get(token, UNREACHABLE)) for token in ordered]
    backend = unigram(str(file), proto, vocabulary, MARIAN_SPECIAL["unk_token"])
    add_template(str(file), backend, ("$A", "</s>"), ("$A", "$B", "</s>"))
    backend.add_special_tokens(list(MARIAN_SPECIAL.values()))
    codes = [token for token in ordered if token.startswith(">>") and token.endswith("<<")]
    backend.add_tokens([AddedToken(code, normalized=False) for code in codes])
    return str(backend.to_str())
