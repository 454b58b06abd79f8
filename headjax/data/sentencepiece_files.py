"""Tokenizers from SentencePiece's model files, and SentencePiece vocabularies learned from text.

The `sentencepiece` library, an optional dependency, reads and trains; what comes out is a `Tokenizer` like any other.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headjax.core.errors import DataError, require
from headjax.data.byte_level_files import ROBERTA
from headjax.data.text_files import read_bytes
from headjax.data.tokenizers import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend
    from tokenizers import normalizers

SPACE = "▁"
"""What SentencePiece writes for a space."""

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
"""Types of pieces in a model file."""

UNREACHABLE = -100.0
"""Added to the score of pieces that text never becomes; those of others lie between -20 and 0."""

ROLES = {"bos_token": "bos_id", "eos_token": "eos_id", "pad_token": "pad_id"}
"""Special tokens by role, and where a model file says which piece is one."""


class Dialect(NamedTuple):
    """What a family of models adds to its SentencePiece file.

    Attributes:
        single, pair: how texts and pairs are joined with special tokens; none adds nothing.
        special: special tokens by role, besides those that the file names.
        before: tokens that stand before the pieces.
        left_out: how many of the file's first pieces they take the place of.
        after: tokens that follow the pieces.
        normalizers: what text goes through before the file's own rules.
        drops: whether text never becomes a piece of the file.
        file: the name that the family gives its file.
    """

    single: tuple[str, ...] = ()
    pair: tuple[str, ...] = ()
    special: Mapping[str, str] = {}
    before: tuple[str, ...] = ()
    left_out: int = 0
    after: tuple[str, ...] = ()
    normalizers: Callable[[], list[normalizers.Normalizer]] = list
    drops: Callable[[str], bool] = lambda piece: False
    file: str = "spiece.model"


def _albert_normalizers() -> list[normalizers.Normalizer]:
    from tokenizers import normalizers as known

    quotes = [known.Replace(quote, '"') for quote in ("``", "''")]
    return [*quotes, known.NFKD(), known.StripAccents(), known.Lowercase()]


def _ends_in_number_and_comma(piece: str) -> bool:
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


_T5 = Dialect(single=("$A", "</s>"), pair=("$A", "</s>", "$B", "</s>"), special={"eos_token": "</s>"})

_XLM_ROBERTA = Dialect(
    single=("<s>", "$A", "</s>"),
    pair=("<s>", "$A", "</s>", "</s>", "$B", "</s>"),
    special=ROBERTA,
    before=("<s>", "<pad>", "</s>", "<unk>"),
    left_out=3,
    after=("<mask>",),
    file="sentencepiece.bpe.model",
)

DIALECTS: Mapping[str, Dialect] = {
    "": Dialect(),
    "t5": _T5._replace(after=tuple(f"<extra_id_{number}>" for number in reversed(range(100)))),
    "mt5": _T5,
    "xlm-roberta": _XLM_ROBERTA,
    "camembert": _XLM_ROBERTA._replace(
        before=("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"), left_out=1
    ),
    "albert": Dialect(
        single=("[CLS]", "$A", "[SEP]"),
        pair=("[CLS]", "$A", "[SEP]", "$B:1", "[SEP]:1"),
        special={
            "bos_token": "[CLS]",
            "cls_token": "[CLS]",
            "eos_token": "[SEP]",
            "mask_token": "[MASK]",
            "pad_token": "<pad>",
            "sep_token": "[SEP]",
        },
        normalizers=_albert_normalizers,
        drops=_ends_in_number_and_comma,
    ),
}
"""By Hugging Face's `model_type`; none is the file by itself. ALBERT lowers case, drops accents, and takes the comma
off a number (Lan et al. 2020's code). XLM-RoBERTa and CamemBERT count as fairseq did: its dictionary's own tokens come
first, so that pieces stand one and four places after those of the file."""


def sentencepiece_tokenizer(path: str | Path, family: str = "") -> Tokenizer:
    """The tokenizer of a SentencePiece unigram model (Kudo 2018), as a family of models uses it.

    It cuts text as the library does. Two exceptions: of two ways to cut with the same score either may be taken, and
    text that spells a special token is that token where the vocabulary lacks one of its characters.

    Args:
        path: the model file.
        family: a name of `DIALECTS`.

    Raises:
        DataError: a file that is no such model, or of a kind that is not read; or the library is not installed.
    """
    file = Path(path).expanduser()
    return _tokenizer(str(file), read_bytes(file), DIALECTS[family])


def train_sentencepiece(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A SentencePiece unigram vocabulary (Kudo 2018) learned from texts, by the library's defaults.

    Text is normalised (NFKC, white space to single spaces), so unlike byte pairs it does not come back to the letter;
    every character of the texts has a piece. Special tokens are T5's: `<pad>` 0, `</s>` 1, `<unk>` 2.

    Args:
        texts: what to learn from, each cut at its lines.
        vocab_size: number of pieces, special tokens included.

    Raises:
        DataError: the texts have too few or too many different characters and words for so many pieces, or the library
            is not installed.
    """
    library = _library()
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
        )
    except (RuntimeError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"vocab_size: the text does not yield {vocab_size} pieces: {reason}") from None
    return _tokenizer("sentencepiece", written.getvalue(), Dialect())


def _tokenizer(name: str, data: bytes, dialect: Dialect) -> Tokenizer:
    proto = parse_model(name, data)
    if any(piece.type not in (UNKNOWN, CONTROL) for piece in proto.pieces[: dialect.left_out]):
        raise DataError(f"{name}: its first {dialect.left_out} pieces are not special ones, as the family's are")
    vocabulary = _vocabulary(proto, dialect)
    special = {"unk_token": _unknown(name, proto), **_roles(proto), **dialect.special}
    backend = unigram(proto, vocabulary, special["unk_token"], dialect.normalizers())
    add_template(name, backend, dialect.single, dialect.pair)
    marked = {piece.piece for piece in proto.pieces if piece.type in (UNKNOWN, CONTROL)} | {*dialect.special.values()}
    backend.add_special_tokens([token for token, _ in vocabulary if token in marked])
    known = {token for token, _ in vocabulary}
    return Tokenizer(
        backend.to_str(), tuple(sorted((role, token) for role, token in special.items() if token in known))
    )


def unigram(
    proto: Any, vocabulary: Sequence[tuple[str, float]], unknown: str, rules: Sequence[normalizers.Normalizer] = ()
) -> Backend:
    """The `tokenizers` library's tokenizer of a unigram model.

    Args:
        proto: the model file's message, for what it does to white space and characters.
        vocabulary: tokens in the order of their ids, with their scores.
        unknown: the token that stands for unknown text.
        rules: what text goes through first.

    Raises:
        DataError: the file is of another kind.
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    number = next(number for number, (token, _) in enumerate(vocabulary) if token == unknown)
    backend = Backend(models.Unigram(list(vocabulary), unk_id=number, byte_fallback=False))
    charsmap = proto.normalizer_spec.precompiled_charsmap
    backend.normalizer = normalizers.Sequence([*rules, *([normalizers.Precompiled(charsmap)] if charsmap else [])])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, prepend_scheme="always")]
    )
    backend.decoder = decoders.Metaspace(SPACE, prepend_scheme="always")
    return backend


def add_template(name: str, backend: Backend, single: Sequence[str], pair: Sequence[str]) -> None:
    """Joins texts and pairs with special tokens, as `single` and `pair` say; empty adds nothing.

    Raises:
        DataError: the vocabulary lacks one of them; the message starts with `name`.
    """
    from tokenizers import processors

    added = sorted({part.partition(":")[0] for part in (*single, *pair) if not part.startswith("$")})
    for token in added:
        if backend.token_to_id(token) is None:
            raise DataError(f"{name}: no piece {token}, which the model's texts are joined with")
    if single:
        backend.post_processor = processors.TemplateProcessing(
            single=list(single),
            pair=list(pair),
            special_tokens=[(token, backend.token_to_id(token)) for token in added],
        )


def _unknown(name: str, proto: Any) -> str:
    unknown = next((piece.piece for piece in proto.pieces if piece.type == UNKNOWN), None)
    if unknown is None:
        raise DataError(f"{name}: no piece stands for unknown text")
    return str(unknown)


def _roles(proto: Any) -> dict[str, str]:
    """The special tokens that the file names, by role."""
    numbers = {role: getattr(proto.trainer_spec, field) for role, field in ROLES.items()}
    return {role: proto.pieces[number].piece for role, number in numbers.items() if number >= 0}


def parse_model(name: str, data: bytes, model_type: str = "unigram") -> Any:
    """A model file's message.

    Args:
        name: of the file, for errors.
        data: its bytes.
        model_type: `unigram`, or `bpe` for one that falls back to bytes and leaves white space as it is (Llama).

    Raises:
        DataError: it is no model file, or of another kind; or the library is not installed.
    """
    _library()
    from google.protobuf.message import DecodeError

    messages: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    proto = messages.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        proto.Clear()
    if not proto.pieces:
        raise DataError(f"{name}: not a SentencePiece model")
    trained, rules = proto.trainer_spec, proto.normalizer_spec
    pairs = model_type == "bpe"
    if trained.model_type != (trained.BPE if pairs else trained.UNIGRAM) or trained.byte_fallback != pairs:
        wanted = "byte pairs with byte fallback" if pairs else "unigram models without byte fallback"
        raise DataError(f"{name}: only {wanted} are read here; save it as tokenizer.json")
    usual = rules.add_dummy_prefix and rules.remove_extra_whitespaces != pairs and rules.escape_whitespaces
    if not usual or trained.treat_whitespace_as_suffix or (pairs and rules.precompiled_charsmap):
        raise DataError(f"{name}: it treats white space in an unusual way; save it as tokenizer.json")
    return proto


def piece_scores(proto: Any, drops: Callable[[str], bool] = lambda piece: False) -> list[tuple[str, float]]:
    """The pieces with the scores by which the library cuts text."""
    highest = max(piece.score for piece in proto.pieces if piece.type == NORMAL)

    def score(piece: Any) -> float:
        if piece.type == USER_DEFINED:  # before any other way to cut, as the library has it
            return float(len(piece.piece.encode()) * highest - 0.1)
        unreachable = piece.type in (UNKNOWN, CONTROL) or drops(piece.piece)
        return float(piece.score + UNREACHABLE * unreachable)

    return [(piece.piece, score(piece)) for piece in proto.pieces]


def _vocabulary(proto: Any, dialect: Dialect) -> list[tuple[str, float]]:
    """The tokens in the order of their ids, with their scores."""
    pieces = piece_scores(proto, dialect.drops)[dialect.left_out :]
    known = {piece.lstrip(SPACE) for piece, _ in pieces}
    before, after = ([(token, UNREACHABLE) for token in tokens] for tokens in (dialect.before, dialect.after))
    return before + pieces + [(token, score) for token, score in after if token not in known]


def _library() -> Any:
    try:
        import sentencepiece
    except ImportError:
        raise DataError("sentencepiece: not installed: pip install 'headjax[sentencepiece]'") from None
    return sentencepiece
