"""Sentences and pairs of sentences as a model reads them: with the tokenizer's special tokens, cut to a length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headjax.core.errors import DataError
from headjax.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    import tokenizers


class Sequences(NamedTuple):
    """Encoded examples of different lengths.

    Attributes:
        ids: token ids of each example, int32 `[tokens]`.
        types: which sentence each token belongs to (`token_type_ids`), int32 `[tokens]`.
    """

    ids: list[np.ndarray]
    types: list[np.ndarray]


def encode_sequences(
    tokenizer: Tokenizer, first: Sequence[str], second: Sequence[str] | None = None, *, max_length: int
) -> Sequences:
    """Encodes sentences, or pairs of them, as the tokenizer was made to ([CLS] a [SEP] b [SEP] for BERT).

    What is too long is cut at its end; of a pair the longer sentence is cut first, token by token.

    Args:
        tokenizer: the model's.
        first: the sentences.
        second: second sentences of pairs.
        max_length: of an example in tokens, special ones included.

    Raises:
        DataError: a length that leaves no room for text, or pairs for a tokenizer that does not know how to join them.
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
    encoded = backend.encode_batch(inputs, add_special_tokens=True)
    return Sequences(
        [np.asarray(one.ids, np.int32) for one in encoded], [np.asarray(one.type_ids, np.int32) for one in encoded]
    )


def encode_packed(
    tokenizer: Tokenizer, first: Sequence[str], second: Sequence[str], *, max_length: int
) -> dict[str, list[np.ndarray]]:
    """Encodes every pair as two sentences that do not see each other, one after the other in one example.

    Args:
        tokenizer: the model's.
        first, second: the sentences.
        max_length: of a sentence in tokens, special ones included.

    Returns:
        By example int32 `[tokens]` of `input_ids`, `segment_ids` (1 for the first sentence, 2 for the second) and
        `position_ids` (of each sentence from 0).

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
    """The id of padding; 0, which the attention mask hides as well, where the tokenizer has no padding token."""
    return tokenizer.special_id("pad_token") if "pad_token" in dict(tokenizer.special) else 0


def changeable(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """A copy of the library's tokenizer, free to be changed."""
    import tokenizers

    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    backend.encode_special_tokens = True
    return backend
