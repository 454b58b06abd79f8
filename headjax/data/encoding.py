"""Texts as token ids: single texts, pairs of them, and whole batches for a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headjax.core.errors import DataError
from headjax.data.examples import sequences
from headjax.tokenizers.tokenizer import CANNOT_READ, Tokenizer, library_errors

if TYPE_CHECKING:
    import tokenizers


class Sequences(NamedTuple):
    """Encoded examples of different lengths.

    Attributes:
        ids: token ids of each example, int32 `[tokens]`.
        types: number of the sentence of each token (`token_type_ids`), int32 `[tokens]`.
    """

    ids: list[np.ndarray]
    types: list[np.ndarray]


def encode_sequences(
    tokenizer: Tokenizer, first: Sequence[str], second: Sequence[str] | None = None, *, max_length: int
) -> Sequences:
    """Encode sentences, or pairs of them, with the tokenizer's special tokens ([CLS] a [SEP] b [SEP] for BERT).

    Examples that are too long are cut at their end; of a pair the longer sentence is cut first, token by token.

    Args:
        tokenizer: the model's tokenizer.
        first: the sentences.
        second: second sentences of pairs.
        max_length: greatest number of tokens of an example, special tokens included.

    Raises:
        DataError: a length that leaves no room for text, or pairs for a tokenizer without a post-processor.
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


def encode_packed(
    tokenizer: Tokenizer, first: Sequence[str], second: Sequence[str], *, max_length: int
) -> dict[str, list[np.ndarray]]:
    """Encode every pair as two sentences that do not attend to each other, one after the other in one example.

    Args:
        tokenizer: the model's tokenizer.
        first, second: the sentences.
        max_length: greatest number of tokens of a sentence, special tokens included.

    Returns:
        For every example int32 `[tokens]` of `input_ids`, `segment_ids` (1 for the first sentence, 2 for the second)
        and `position_ids` (from 0 in each sentence).

    Raises:
        DataError: a length that leaves no room for text.
    """
    halves = [encode_sequences(tokenizer, texts, max_length=max_length).ids for texts in (first, second)]
    pairs = list(zip(*halves, strict=True))
    return {
        "input_ids": [np.concatenate(pair) for pair in pairs],
        "segment_ids": [np.repeat(np.asarray([1, 2], np.int32), [len(ids) for ids in pair]) for pair in pairs],
        "position_ids": [np.concatenate([np.arange(len(ids), dtype=np.int32) for ids in pair]) for pair in pairs],
    }


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
