"""Examples by index: texts as token ids, and dicts of arrays that training and evaluation read, padded when read."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import numpy as np

from headjax.core.errors import DataError, require
from headjax.tokenizers.tokenizer import CANNOT_READ, Tokenizer, library_errors

if TYPE_CHECKING:
    import tokenizers


MULTIPLE = 8
"""Examples are padded to multiples of this length, which suits vector units."""

Record = Mapping[str, np.ndarray]
"""The stored arrays of an example by name, without padding; each has at least one axis."""


class Source(Protocol):
    """Examples by index: dicts of arrays by Hugging Face's names, all of the same shapes."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Mapping[str, np.ndarray]: ...


Records = Source
"""Records by index, which look the same."""


class RandomSource(abc.ABC):
    """Examples with random parts, drawn again each time training reads them (masked tokens, cropped images)."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Number of examples."""

    @abc.abstractmethod
    def draw(self, index: int, generator: np.random.Generator) -> Mapping[str, np.ndarray]:
        """Return an example; its random parts depend on the generator alone."""

    def __getitem__(self, index: int) -> Mapping[str, np.ndarray]:
        return self.draw(index, np.random.default_rng(index))


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Some examples (or records) of a source, in a given order."""

    source: Source
    indices: np.ndarray

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Mapping[str, np.ndarray]:
        return self.source[int(self.indices[index])]


@dataclasses.dataclass(frozen=True)
class Mapped:
    """Examples of one length, each made of its record when it is read."""

    records: Records
    example: Callable[[Record], dict[str, np.ndarray]]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return self.example(self.records[index])


Pad = Callable[[Record, int], dict[str, np.ndarray]]
"""Turns a record into an example of a given length, not below the record's own."""


@dataclasses.dataclass(frozen=True)
class Padded:
    """Examples of different lengths, each padded when it is read."""

    records: Records
    lengths: np.ndarray
    length: int
    pad: Pad

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return self.padded(index, self.length)

    def padded(self, index: int, length: int) -> dict[str, np.ndarray]:
        """Return an example padded to another length, not below its own."""
        return self.pad(self.records[index], length)

    def values(self, name: str) -> np.ndarray:
        """Return `[records]` the values of a target, or of another column with one value per record."""
        return np.concatenate([self.records[index][name] for index in range(len(self))] or [np.zeros(0, np.int32)])

    def select(self, indices: np.ndarray, length: int = 0) -> Self:
        """Return these examples, padded to another length; 0 keeps the length."""
        chosen = Chosen(self.records, indices)
        return dataclasses.replace(self, records=chosen, lengths=self.lengths[indices], length=length or self.length)

    def first(self, limit: int) -> Self:
        """Return the first examples; all of them if the limit is 0."""
        return self.select(np.arange(min(limit or len(self), len(self))))

    def buckets(self, bounds: Sequence[int]) -> list[Self]:
        """Return the examples in groups by length, none empty; each is padded to its bound, the last to `length`."""
        ends = bucket_ends(bounds, self.length)
        number = np.searchsorted(ends, self.lengths)
        groups = [(np.flatnonzero(number == i), end) for i, end in enumerate(ends)]
        return [self.select(indices, end) for indices, end in groups if indices.size]


def subset(source: Source, indices: np.ndarray) -> Source:
    """Return these examples of a source; those of different lengths can still be read by length."""
    return source.select(indices) if isinstance(source, Padded) else Chosen(source, indices)


def sequences(
    columns: Mapping[str, Sequence[np.ndarray]],
    targets: Mapping[str, np.ndarray],
    padding_id: int = 0,
    limit: int | None = None,
) -> Padded:
    """Return sequences in memory as examples."""
    count = len(columns["input_ids"])
    records = [
        {name: column[i] for name, column in columns.items()} | {name: one[i : i + 1] for name, one in targets.items()}
        for i in range(count)
    ]
    lengths = np.asarray([len(ids) for ids in columns["input_ids"]], np.int64)
    pad = functools.partial(pad_sequence, padding_id=padding_id, targets=tuple(targets))
    return Padded(records, lengths, rounded_length(lengths, limit), pad)


def pad_sequence(record: Record, length: int, *, padding_id: int, targets: Sequence[str]) -> dict[str, np.ndarray]:
    """Return a record of one sequence as an example, with an `attention_mask` that is 0 at padding."""
    columns = {name: array for name, array in record.items() if name not in targets}
    example = {name: padded(array, length, padding_id * (name == "input_ids")) for name, array in columns.items()}
    example["attention_mask"] = padded(np.ones(len(record["input_ids"])), length)
    return example | {name: record[name][0] for name in targets}


def padded(array: np.ndarray, length: int, fill: int = 0) -> np.ndarray:
    """Return `[tokens]` as int32 `[length]`."""
    row = np.full(length, fill, np.int32)
    row[: len(array)] = array
    return row


def rounded_length(lengths: np.ndarray, limit: int | None = None) -> int:
    """Return the longest length, rounded up to a multiple of `MULTIPLE`, but not above the limit."""
    longest = int(lengths.max(initial=1))
    rounded = -(-longest // MULTIPLE) * MULTIPLE
    return rounded if limit is None else max(min(rounded, limit), longest)


def bucket_ends(bounds: Sequence[int], length: int) -> list[int]:
    """Return the bounds below `length`, and `length`, ascending."""
    return sorted({bound for bound in bounds if bound < length} | {length})


class TokenBlocks:
    """One long text as examples `{"input_ids": int32 [length]}`: consecutive blocks, without an incomplete last one."""

    def __init__(self, tokens: np.ndarray, length: int) -> None:
        require(length >= 2, "length", f"must be at least 2 (a token and its successor), got {length}")
        if len(tokens) < length:
            raise DataError(f"length: the text has {len(tokens)} tokens, less than one block of {length}")
        blocks = len(tokens) // length
        self.tokens = tokens[: blocks * length].astype(np.int32).reshape(blocks, length)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"input_ids": self.tokens[index]}


class Sequences(NamedTuple):
    """Encoded examples of different lengths."""

    ids: list[np.ndarray]
    types: list[np.ndarray]


def encode_sequences(
    tokenizer: Tokenizer, first: Sequence[str], second: Sequence[str] | None = None, *, max_length: int
) -> Sequences:
    """Encode sentences, or pairs of them, with the tokenizer's special tokens ([CLS] a [SEP] b [SEP] for BERT).

    Examples that are too long are cut at their end; of a pair the longer sentence is cut first, token by token.
    """
    backend = changeable(tokenizer)
    pair = second is not None
    special = backend.num_special_tokens_to_add(pair)
    if pair and special == 0:
        raise DataError("tokenizer: it has no post-processor, so it cannot join pairs of sentences")
    if max_length <= special + pair:
        raise DataError(f"max_length: {max_length} tokens leave no room for text beside {special} special tokens")
    backend.enable_truncation(max_length, strategy="longest_first")
    inputs = list(first) if second is None else list(zip(first, second, strict=True))
    with library_errors(CANNOT_READ):
        encoded = backend.encode_batch(inputs, add_special_tokens=True)
    return Sequences(
        [np.asarray(one.ids, np.int32) for one in encoded], [np.asarray(one.type_ids, np.int32) for one in encoded]
    )


def encode_prompted(
    tokenizer: Tokenizer, texts: Sequence[str], prompt: str, *, max_length: int, pooled: bool = True
) -> dict[str, list[np.ndarray]]:
    """Encode sentences behind a prompt; with a `pooling_mask`, 0 at the prompt's tokens, if those are not pooled."""
    encoded = encode_sequences(tokenizer, [prompt + text for text in texts], max_length=max_length)
    columns = {"input_ids": encoded.ids, "token_type_ids": encoded.types}
    if pooled or not prompt:
        return columns
    with library_errors(CANNOT_READ):
        alone = changeable(tokenizer).encode(prompt)
    length = len(alone.ids) - alone.special_tokens_mask[-1]  # without the token that ends a text
    masks = [(np.arange(len(ids)) >= length).astype(np.int32) for ids in encoded.ids]
    return columns | {"pooling_mask": masks}


def encode_packed(
    tokenizer: Tokenizer,
    first: Sequence[str],
    second: Sequence[str],
    *,
    max_length: int,
    prompts: tuple[str, str] = ("", ""),
    pooled: bool = True,
) -> dict[str, list[np.ndarray]]:
    """Encode every pair as two sentences that do not attend to each other, one after the other in one example."""
    halves = [
        encode_prompted(tokenizer, texts, prompt, max_length=max_length, pooled=pooled)
        for texts, prompt in zip((first, second), prompts, strict=True)
    ]
    pairs = list(zip(*(half["input_ids"] for half in halves), strict=True))
    columns = {
        "input_ids": [np.concatenate(pair) for pair in pairs],
        "segment_ids": [np.repeat(np.asarray([1, 2], np.int32), [len(ids) for ids in pair]) for pair in pairs],
        "position_ids": [np.concatenate([np.arange(len(ids), dtype=np.int32) for ids in pair]) for pair in pairs],
    }
    if not any("pooling_mask" in half for half in halves):
        return columns
    masks = [half.get("pooling_mask") or [np.ones_like(ids) for ids in half["input_ids"]] for half in halves]
    return columns | {"pooling_mask": [np.concatenate(pair) for pair in zip(*masks, strict=True)]}


def padding_id(tokenizer: Tokenizer) -> int:
    """Return the id of padding; 0 if the tokenizer has no padding token, since the attention mask hides padding."""
    return tokenizer.special_id("pad_token") if "pad_token" in dict(tokenizer.special) else 0


def changeable(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """Return a copy of the library's tokenizer, which may be changed."""
    import tokenizers

    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    backend.encode_special_tokens = True
    return backend


UNLIMITED = 2**31 - 1


def text_batch(
    tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int | None = None
) -> dict[str, np.ndarray]:
    """Return texts, or pairs of texts, as a batch for a model: with special tokens, padded on the right.

        >>> model = headjax.demo_model()
        >>> batch = headjax.text_batch(model.tokenizer, ["for name in names:", "pass"])
        >>> batch["input_ids"].shape, batch["attention_mask"].sum(axis=1)
        ((2, 8), array([5, 2]))

    Args:
        tokenizer: the model's tokenizer.
        texts: the texts, or the first text of each pair.
        pairs: the second text of each pair.
        max_length: greatest number of tokens of an example, see `encode_sequences`; None cuts nothing.

    Returns:
        `input_ids`, `token_type_ids` (1 on the second text where the vocabulary tells them apart) and `attention_mask`
        (0 at padding), int32 `[batch, length]`, the length of the longest example rounded up to a multiple of 8.

    Raises:
        DataError: no texts, a string instead of a list, or not as many pairs as texts.
    """
    if isinstance(texts, str) or isinstance(pairs, str) or not texts:
        raise DataError("texts: expected a list of at least one text")
    if pairs is not None and len(pairs) != len(texts):
        raise DataError(f"pairs: there are {len(pairs)} for {len(texts)} texts")
    encoded = encode_sequences(tokenizer, texts, pairs, max_length=UNLIMITED if max_length is None else max_length)
    rows = sequences({"input_ids": encoded.ids, "token_type_ids": encoded.types}, {}, padding_id(tokenizer))
    examples = [rows[index] for index in range(len(rows))]
    return {name: np.stack([example[name] for example in examples]) for name in examples[0]}
