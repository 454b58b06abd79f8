"""Examples by index: dicts of arrays that training and evaluation read, padded when read; texts as token ids."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from headjax.core.errors import DataError, require
from headjax.tokenizers.tokenizer import Tokenizer

MULTIPLE = 8  # examples are padded to multiples of this length, which suits vector units

Record = Mapping[str, np.ndarray]
"""The stored arrays of an example by name, without padding; each has at least one axis."""


class ExampleSource(Protocol):
    """Examples by index: dicts of arrays by Hugging Face's names, all of the same shapes."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Mapping[str, np.ndarray]: ...


Records = ExampleSource
"""Records by index, which look the same."""


class MeasureSpec(NamedTuple):
    """Name and arguments of the measure of a task's examples; `headjax.evaluation.task.MEASURES` has the measures."""

    measure: str
    arguments: Mapping[str, Any] = MappingProxyType({})


class TaskData(NamedTuple):
    """A loaded task."""

    tokenizer: Tokenizer | None
    train: ExampleSource
    validation: ExampleSource
    info: Mapping[str, Any]
    measured: MeasureSpec | None = None
    threads: int = 0


def each(records: Records) -> Iterator[Record]:
    """Yield all records, or examples, in order."""
    return (records[index] for index in range(len(records)))


@dataclasses.dataclass(frozen=True)
class Mapped:
    """Examples (or records) of one length, each made of an item when it is read."""

    items: Any  # with a length, and an item for every number below it
    make: Callable[..., Mapping[str, np.ndarray]]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Mapping[str, np.ndarray]:
        return self.make(self.items[index])


class Drawn(Mapped):
    """Examples with random parts, drawn again each time training reads them (masked tokens, cropped images)."""

    def draw(self, index: int, generator: np.random.Generator) -> Mapping[str, np.ndarray]:
        return self.make(self.items[index], generator)

    def __getitem__(self, index: int) -> Mapping[str, np.ndarray]:
        return self.draw(index, np.random.default_rng(index))


@dataclasses.dataclass(frozen=True)
class Padded:
    """Examples of different lengths, each padded by `pad` to a length not below its own when it is read.

    With `bounds`, `train_iterator` pads each batch to one of these lengths, or to `length`.
    """

    records: Records
    lengths: np.ndarray
    length: int
    pad: Callable[[Record, int], dict[str, np.ndarray]]
    bounds: tuple[int, ...] = ()

    @classmethod
    def rounded(cls, records: Records, lengths: np.ndarray, limit: int | None, pad: Any) -> Self:
        """Return examples padded to the greatest length, rounded up to a multiple of `MULTIPLE` up to a limit."""
        longest = int(lengths.max(initial=1))
        length = -(-longest // MULTIPLE) * MULTIPLE
        return cls(records, lengths, length if limit is None else max(min(length, limit), longest), pad)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return self.padded(index, self.length)

    def padded(self, index: int, length: int) -> dict[str, np.ndarray]:
        return self.pad(self.records[index], length)

    def select(self, indices: np.ndarray, length: int = 0) -> Self:
        """Return these examples, padded to another length; 0 keeps the length."""
        chosen = Mapped(indices.tolist(), self.records.__getitem__)
        return dataclasses.replace(self, records=chosen, lengths=self.lengths[indices], length=length or self.length)

    def first(self, limit: int) -> Self:
        """Return the first examples; all of them if the limit is 0."""
        return self.select(np.arange(len(self))[: limit or None])

    def ends(self, bounds: Sequence[int]) -> np.ndarray:
        """Return the bounds below `length`, and `length`, ascending."""
        require(all(bound >= 1 for bound in bounds), "buckets", f"must be positive lengths, got {list(bounds)}")
        return np.asarray(sorted({bound for bound in bounds if bound < self.length} | {self.length}))


def by_length(source: ExampleSource, bounds: Sequence[int]) -> Sequence[ExampleSource]:
    """Return examples of different lengths in groups, short ones first, each padded to its bound; others are one."""
    if not bounds or not isinstance(source, Padded):
        return [source]
    ends = source.ends(bounds)
    number = np.searchsorted(ends, source.lengths)
    groups = [(np.flatnonzero(number == i), int(end)) for i, end in enumerate(ends)]
    return [source.select(indices, end) for indices, end in groups if indices.size]


def subset(source: ExampleSource, indices: np.ndarray) -> ExampleSource:
    """Return these examples of a source; of those of different lengths batches can still be padded less."""
    return source.select(indices) if isinstance(source, Padded) else Mapped(indices.tolist(), source.__getitem__)


def concatenated(sources: Sequence[ExampleSource]) -> ExampleSource:
    """Return the examples of several sources, with the arrays that all have; `Padded` where all are."""
    items: Any = [(source, index) for source in sources for index in range(len(source))]
    names = set.intersection(*({*source[0]} for source in sources))

    def common(example: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: array for name, array in example.items() if name in names}

    def pad(item: Any, length: int) -> dict[str, np.ndarray]:
        return common(item[0].padded(item[1], length))

    padded = [source for source in sources if isinstance(source, Padded)]
    if len(padded) < len(sources):
        return Mapped(items, lambda item: common(item[0][item[1]]))
    lengths = np.concatenate([source.lengths for source in padded])
    return Padded(items, lengths, max(source.length for source in padded), pad)


def sequences(
    columns: Mapping[str, Sequence[np.ndarray]],
    targets: Mapping[str, np.ndarray],
    padding_id: int = 0,
    limit: int | None = None,
) -> Padded:
    """Return sequences in memory as examples."""
    lengths = np.asarray([len(ids) for ids in columns["input_ids"]], np.int64)
    stored: dict[str, Any] = {**columns, **{name: array[:, None] for name, array in targets.items()}}
    records = [{name: column[i] for name, column in stored.items()} for i in range(len(lengths))]
    pad = functools.partial(pad_sequence, columns=tuple(columns), targets=tuple(targets), padding_id=padding_id)
    return Padded.rounded(records, lengths, limit, pad)


def pad_sequence(
    record: Record, length: int, *, columns: Sequence[str], targets: Sequence[str], padding_id: int
) -> dict[str, np.ndarray]:
    """Return a record of one sequence as an example, with an `attention_mask` that is 0 at padding."""
    known = [name for name in columns if name in record]
    example = {name: padded(record[name], length, padding_id * (name == "input_ids")) for name in known}
    example["attention_mask"] = padded(np.ones(len(record["input_ids"])), length)
    return example | {name: record[name][0] for name in targets}


def padded(array: np.ndarray, length: int, fill: int = 0) -> np.ndarray:
    """Return `[tokens]` as int32 `[length]`."""
    row = np.full(length, fill, np.int32)
    row[: len(array)] = array
    return row


def token_blocks(tokens: np.ndarray, length: int, prefix: Sequence[int] | np.ndarray = ()) -> Mapped:
    """Return one long text as examples `input_ids` int32 `[length]`: consecutive blocks, without an incomplete one.

    Each begins with the tokens of a prefix.
    """
    size, before = length - len(prefix), np.asarray(prefix, np.int32)
    blocks = tokens[: len(tokens) // size * size].astype(np.int32).reshape(-1, size)
    return Mapped(blocks, lambda block: {"input_ids": np.concatenate([before, block])})


def encode_sequences(
    tokenizer: Tokenizer, first: Sequence[str], second: Sequence[str] | None = None, *, max_length: int
) -> dict[str, list[np.ndarray]]:
    """Encode sentences, or pairs of them, with the tokenizer's special tokens ([CLS] a [SEP] b [SEP] for BERT).

    Returns `input_ids` and `token_type_ids`, `[tokens]` each. Examples that are too long are cut at their end, or at
    their beginning where the tokenizer's `truncation_side` says so; of a pair the longer sentence is cut first.
    """
    pair = second is not None
    special = tokenizer.backend.num_special_tokens_to_add(pair)
    if pair and special == 0:
        raise DataError("tokenizer: it has no post-processor, so it cannot join pairs of sentences")
    if max_length <= special + pair:
        raise DataError(f"max_length: {max_length} tokens leave no room for text beside {special} special tokens")
    truncation = {"max_length": max_length, "direction": tokenizer.truncation_side}
    encoded = tokenizer.encodings(first if second is None else zip(first, second, strict=True), truncation)
    return {
        "input_ids": [np.asarray(encoding.ids, np.int32) for encoding in encoded],
        "token_type_ids": [tokenizer.types(encoding) for encoding in encoded],
    }


def encode_prompted(
    tokenizer: Tokenizer, texts: Sequence[str], prompt: str, *, max_length: int, pooled: bool = True
) -> dict[str, list[np.ndarray]]:
    """Encode sentences behind a prompt; with a `pooling_mask`, 0 at the prompt's tokens, if those are not pooled."""
    columns = encode_sequences(tokenizer, [prompt + text for text in texts], max_length=max_length)
    if pooled or not prompt:
        return columns
    [alone] = tokenizer.encodings([prompt])
    length = len(alone.ids) - alone.special_tokens_mask[-1]  # without the token that ends a text
    masks = [(np.arange(len(ids)) >= length).astype(np.int32) for ids in columns["input_ids"]]
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


def text_batch(
    tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int | None = None
) -> dict[str, np.ndarray]:
    """Return texts, or pairs of texts, as a batch for a model: with special tokens, padded on the tokenizer's side.

        >>> model = headjax.demo_model()
        >>> batch = headjax.text_batch(model.tokenizer, ["for name in names:", "pass"])
        >>> batch["input_ids"].shape, batch["attention_mask"].sum(axis=1)
        ((2, 8), array([5, 2]))

    Args:
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
    encoded = encode_sequences(tokenizer, texts, pairs, max_length=2**31 - 1 if max_length is None else max_length)
    rows = sequences(encoded, {}, tokenizer.padding_id)
    examples = [*each(rows)]
    batch = {name: np.stack([example[name] for example in examples]) for name in examples[0]}
    if tokenizer.config.get("padding_side") == "left":
        counts = batch["attention_mask"].sum(axis=1, keepdims=True)
        columns = (np.arange(rows.length) + counts) % rows.length
        batch = {name: np.take_along_axis(array, columns, axis=1) for name, array in batch.items()}
    return batch
