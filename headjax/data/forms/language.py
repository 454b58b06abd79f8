"""Forms of running text: language models' documents and translations, one a row or packed together."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from headjax.core.class_names import IGNORED
from headjax.core.errors import require
from headjax.core.fields import Count
from headjax.core.serialize import kind
from headjax.data.examples import ExampleSource, Mapped, MeasureSpec, Padded, Record, Records, padded, token_blocks
from headjax.data.forms.form import Encoded, Form, Seed, text_counts
from headjax.data.rows import Row, Split
from headjax.tokenizers.tokenizer import Tokenizer

OPEN_ROWS = 32  # number of rows that are filled at the same time; when another is needed, the fullest is closed


def pack(sizes: np.ndarray, capacity: int) -> list[list[int]]:
    """Group examples into rows: each example goes into the first row that has room for it."""
    done: list[list[int]] = []
    rows: list[list[int]] = []
    room = np.zeros((0, sizes.shape[1]), np.int64)
    for number, size in enumerate(sizes):
        fitting = np.flatnonzero((room >= size).all(axis=1))
        if fitting.size:
            place = int(fitting[0])
        else:
            if len(rows) == OPEN_ROWS:
                fullest = int(room.sum(axis=1).argmin())
                done.append(rows.pop(fullest))
                room = np.delete(room, fullest, axis=0)
            place = len(rows)
            rows.append([])
            room = np.vstack([room, np.full((1, sizes.shape[1]), capacity)])
        rows[place].append(number)
        room[place] -= size
    return done + rows


def segments(lengths: Sequence[int] | np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the examples in a packed row and the positions in them, int32 `[length]` each."""
    lengths = np.asarray(lengths, np.int64)
    numbers = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    segment_ids, position_ids = np.zeros(length, np.int32), np.zeros(length, np.int32)
    segment_ids[: len(numbers)] = numbers
    position_ids[: len(numbers)] = np.arange(len(numbers)) - starts
    return segment_ids, position_ids


@dataclasses.dataclass(frozen=True, kw_only=True)
class _EndedForm(Form):
    """Base of the forms whose texts end with the end-of-text token."""

    length: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.length >= 2, "length", f"must be at least 2 (a token and its successor), got {self.length}")

    def check(self, tokenizer: Tokenizer) -> None:
        tokenizer.special_id("eos_token")

    def measured(self, metrics: Sequence[str], counts: Mapping[str, Any], source: ExampleSource) -> MeasureSpec | None:
        ratios = ("words_per_token", "bytes_per_token")
        return MeasureSpec("language_modelling", {name: counts[name] for name in ratios if name in counts})


@kind("language_model_rows")
@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageForm(_EndedForm):
    """`text` of documents, as one stream or packed.

    Streamed documents follow one another, each ended by the end-of-text token, and the stream is cut into blocks; a
    token attends to all earlier tokens of its block, also to those of other documents (GPT-2). A block begins with the
    token that the tokenizer's template puts before a text (Llama, Gemma), if it does. A packed row holds whole
    documents that do not attend to each other (`segment_ids`). The positions of each start at 0, and each stands
    between two end-of-text tokens (or such a token and one), so that its first token is predicted too. A document
    longer than a row is continued in the next row, which repeats one token.

    Attributes:
        length: number of tokens of an example.
        packed: whether documents are kept apart.
    """

    fields: ClassVar = {"text": "text"}

    packed: bool = False

    def encode(self, tokenizer: Tokenizer, rows: Sequence[Row], split: Split, seed: Seed) -> Encoded:
        texts = [row.values["text"] for row in rows if row.values["text"].strip()]
        encoded, end = tokenizer.encode(texts), _end(tokenizer)
        counts = text_counts(texts, sum(len(ids) + 1 for ids in encoded)) | {"documents": len(texts)}
        if self.packed:
            return Encoded(self.packed_rows(encoded, end, _prefix(tokenizer, self.length)), counts)
        tokens = np.concatenate([np.zeros(0, np.int32), *(part for ids in encoded for part in (ids, end))])
        return Encoded(token_blocks(tokens, self.length, _prefix(tokenizer, self.length)), counts)

    def packed_rows(
        self, documents: Sequence[np.ndarray], end: np.ndarray, prefix: Sequence[int] | np.ndarray = ()
    ) -> list[Record]:
        """Return encoded documents as packed rows, with their lengths; each begins with a prefix, or else the end."""
        pieces, begin = list[np.ndarray](), prefix if len(prefix) else end
        for ids in documents:
            document = np.concatenate([begin, ids, end])
            starts = range(0, len(document) - 1, self.length - 1)
            pieces.extend(document[start : start + self.length] for start in starts)
        sizes = np.asarray([len(piece) for piece in pieces], np.int32)
        rows = pack(sizes[:, None], self.length)
        return [{"input_ids": np.concatenate([pieces[i] for i in row]), "lengths": sizes[row]} for row in rows]

    def examples(self, tokenizer: Tokenizer, records: Records, sizes: np.ndarray, split: Split) -> ExampleSource:
        return Mapped(records, self.unpacked) if self.packed else records

    def unpacked(self, record: Record) -> dict[str, np.ndarray]:
        """Return a packed row as an example, whose `labels` are -100 where a document begins, and at padding."""
        segment_ids, position_ids = segments(record["lengths"], self.length)
        ids = padded(record["input_ids"], self.length)
        return {
            "input_ids": ids,
            "segment_ids": segment_ids,
            "position_ids": position_ids,
            "attention_mask": (segment_ids > 0).astype(np.int32),
            "labels": np.where(position_ids > 0, ids, np.int32(IGNORED)),
        }

    def nothing(self, split: Split, counts: Mapping[str, int], place: str) -> str:
        too_little = f"the {split} text has {counts['tokens']} tokens, less than one block of {self.length}"
        return f"length: {too_little}; lower length or give more text"


@kind("wikitext2")
@dataclasses.dataclass(frozen=True, kw_only=True)
class WikitextForm(LanguageForm):
    """WikiText-2 (Merity et al. 2016) by one fixed protocol, so that perplexities compare between models and tools.

    The raw held-out file is encoded whole, after one `bos_token` (else `eos_token`, else nothing). Windows of `context`
    tokens start every `stride` tokens, predict the tokens that those before have not, and the last ends with the text.
    Where the tokenizer's template puts `bos_token` before texts (Llama, Gemma), every window begins with it.
    Losses are summed over the text and divided by its tokens, words (white space separates them) and bytes of UTF-8.
    The usual stride is the rolling log-likelihood of lm-evaluation-harness with a `max_length` of context - 1. The
    training split becomes blocks of `length` tokens, each article ended.

    Attributes:
        context: number of tokens of a window; 0 is `length`.
        stride: tokens from the start of a window to that of the next one; 0 is context - 1.
        split: file that is evaluated on.
    """

    length: int = 1024
    context: Count = 0
    stride: Count = 0
    split: Literal["validation", "test"] = "validation"

    def __post_init__(self) -> None:
        super().__post_init__()
        window = self.window
        require(window >= 2, "context", f"must be at least 2 (a token and its successor), got {window}")
        asks = f"must be below the context of {window}, so that every token is predicted, got {self.stride}"
        require(self.stride < window, "stride", asks)

    @property
    def window(self) -> int:
        return self.context or self.length

    @property
    def file(self) -> str:
        return f"wiki.{'valid' if self.split == 'validation' else self.split}.raw"

    def encode(self, tokenizer: Tokenizer, rows: Sequence[Row], split: Split, seed: Seed) -> Encoded:
        if split == "train":
            return super().encode(tokenizer, rows, split, seed)
        text = "".join(row.values["text"] for row in rows)
        role, prefix = _first_role(tokenizer), _prefix(tokenizer, self.window)
        begin = np.asarray([] if role is None or len(prefix) else [tokenizer.special_id(role)], np.int32)
        tokens = np.concatenate([begin, tokenizer.encode([text])[0]])
        context = min(self.window - len(prefix), len(tokens))
        windows = Windows(tokens, context, min(self.stride or self.window - 1, context), prefix)
        return Encoded(windows, text_counts([text], len(tokens) - (0 if len(prefix) else 1)))

    def protocol(self, tokenizer: Tokenizer, counts: Mapping[str, Any]) -> dict[str, Any]:
        role = _first_role(tokenizer)
        return {
            "text": self.file,
            "split": self.split,
            "context": self.window,
            "stride": self.stride or self.window - 1,
            "begins_with": "nothing" if role is None else dict(tokenizer.special)[role],
            **{name: counts[name] for name in ("tokens", "words", "bytes")},
        }


def _first_role(tokenizer: Tokenizer) -> str | None:
    """Return the role of the token before a text; None if the tokenizer has none."""
    return next((role for role in ("bos_token", "eos_token") if role in dict(tokenizer.special)), None)


def _prefix(tokenizer: Tokenizer, length: int) -> np.ndarray:
    """Return the tokens that the template puts before a text, of which blocks of a length have room for two more."""
    return tokenizer.prefix if len(tokenizer.prefix) <= length - 2 else np.zeros(0, np.int32)


@dataclasses.dataclass(frozen=True)
class Windows:
    """Overlapping windows of a text, in which every token is predicted once, the first one only behind a prefix.

    Attributes:
        prefix: tokens before each window, `context` tokens of the text.
    """

    tokens: np.ndarray
    context: int
    stride: int
    prefix: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int32))

    def __len__(self) -> int:
        return 1 + -(-(len(self.tokens) - self.context) // self.stride)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """Return a window: its `input_ids`, and `labels`, which are -100 at tokens that earlier windows predict."""
        start = min(index * self.stride, len(self.tokens) - self.context)
        ids = self.tokens[start : start + self.context]
        predicted = 0 if index == 0 else self.context + (index - 1) * self.stride
        fresh = np.arange(start, start + self.context) >= predicted
        labels = np.where(fresh, ids, np.int32(IGNORED))
        before = np.full(len(self.prefix), IGNORED, np.int32)
        return {"input_ids": np.concatenate([self.prefix, ids]), "labels": np.concatenate([before, labels])}


SIDES = ("source", "target")


@kind("translations")
@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationForm(_EndedForm):
    """`source` and `target`, each ended by the end-of-text token.

    Training pairs longer than `length` are skipped; validation pairs are cut, and keep their target as text.

    Attributes:
        length: number of tokens of a row on each side.
        packed: whether training rows hold several pairs, which do not attend to each other.
    """

    fields: ClassVar = {"source": "text", "target": "text"}

    packed: bool = True

    def encode(self, tokenizer: Tokenizer, rows: Sequence[Row], split: Split, seed: Seed) -> Encoded:
        pairs = [tuple(row.values[side].strip() for side in SIDES) for row in rows]
        pairs = [pair for pair in pairs if all(pair)]
        cut, end = None if split == "train" else self.length - 1, _end(tokenizer)
        sides = [
            [np.concatenate([ids[:cut], end]) for ids in side_tokenizer.encode([pair[side] for pair in pairs])]
            for side, side_tokenizer in enumerate((tokenizer, tokenizer.for_targets))
        ]
        sizes = np.asarray([[len(ids) for ids in side] for side in sides], np.int64).T.reshape(-1, 2)  # [pairs, sides]
        kept = np.flatnonzero((sizes <= self.length).all(axis=1))
        counts = text_counts([pairs[i][1] for i in kept], int(sizes[kept, 1].sum()))
        counts |= {"pairs": len(kept), "left_out": len(rows) - len(kept), "source_tokens": int(sizes[kept, 0].sum())}
        packed = self.packed and split == "train"
        groups = pack(sizes[kept], self.length) if packed else [[i] for i in range(len(kept))]
        records: list[dict[str, np.ndarray]] = []
        for group in (kept[numbers] for numbers in groups):
            record = {name: np.concatenate([side[i] for i in group]) for name, side in zip(SIDES, sides, strict=True)}
            lengths = {f"{name}_lengths": sizes[group, i].astype(np.int32) for i, name in enumerate(SIDES)}
            records.append(record | lengths)
            if split == "validation":
                records[-1]["reference"] = np.frombuffer(pairs[group[0]][1].encode(), np.uint8)
        return Encoded(records, counts)

    def tokens(self, record: Record) -> int:
        return max(len(record[side]) for side in SIDES)

    def examples(self, tokenizer: Tokenizer, records: Records, sizes: np.ndarray, split: Split) -> ExampleSource:
        packed = self.packed and split == "train"
        pad = functools.partial(self.pad, padding_id=tokenizer.padding_id, packed=packed)
        if packed:
            return Padded(records, sizes, self.length, pad)
        return (Padded if split == "train" else Translations).rounded(records, sizes, self.length, pad)

    def pad(self, record: Record, length: int, *, padding_id: int, packed: bool) -> dict[str, np.ndarray]:
        source, target = record["source"], record["target"]
        example = {
            "input_ids": padded(source, length, padding_id),
            "attention_mask": padded(np.ones(len(source)), length),
            "labels": padded(target, length, IGNORED),
        }
        if packed:
            for side, prefix in zip(SIDES, ("", "decoder_"), strict=True):
                numbers, positions = segments(record[f"{side}_lengths"], length)
                example |= {f"{prefix}segment_ids": numbers, f"{prefix}position_ids": positions}
        return example


def _end(tokenizer: Tokenizer) -> np.ndarray:
    return np.asarray([tokenizer.special_id("eos_token")], np.int32)


class Translations(Padded):
    """Pairs to evaluate on."""

    @functools.cached_property
    def references(self) -> tuple[str, ...]:
        return tuple(self.records[index]["reference"].tobytes().decode() for index in range(len(self)))
