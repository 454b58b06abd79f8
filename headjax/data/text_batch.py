"""Texts as a batch for a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headjax.core.errors import DataError
from headjax.data.encoding import encode_sequences, padding_id
from headjax.data.examples import sequences
from headjax.tokenizers.tokenizer import Tokenizer

UNLIMITED = 2**31 - 1


def text_batch(
    tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int | None = None
) -> dict[str, np.ndarray]:
    """Texts, or pairs of texts, as a model reads them: with special tokens, padded on the right.

    Args:
        tokenizer: the model's.
        texts: the texts, or the first of each pair.
        pairs: the second of each pair.
        max_length: most tokens of an example, special ones included, see `encode_sequences`; None cuts nothing.

    Returns:
        `input_ids`, `token_type_ids` (1 on the second text where the vocabulary tells them apart) and `attention_mask`
        (0 at padding), int32 `[batch, length]`, the length of the longest example rounded up to a multiple of 8.

    Raises:
        DataError: no texts, one string instead of several, or not as many pairs as texts.
    """
    if isinstance(texts, str) or isinstance(pairs, str) or not texts:
        raise DataError("texts: expected a list of at least one text")
    if pairs is not None and len(pairs) != len(texts):
        raise DataError(f"pairs: there are {len(pairs)} for {len(texts)} texts")
    encoded = encode_sequences(tokenizer, texts, pairs, max_length=UNLIMITED if max_length is None else max_length)
    rows = sequences({"input_ids": encoded.ids, "token_type_ids": encoded.types}, {}, padding_id(tokenizer))
    examples = [rows[index] for index in range(len(rows))]
    return {name: np.stack([example[name] for example in examples]) for name in examples[0]}
