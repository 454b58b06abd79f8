"""Operations and cache of formulations by sequence length, and the length above which one costs more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from headjax.attention import Attention, Collaborative, Gated
from headjax.models.config import ModelConfig

_LONGEST = 1 << 24


class Cost(NamedTuple):
    """Cost of one attention layer, or of all layers of a model, at one sequence length.

    Attributes:
        length: Number of tokens.
        flops: Floating-point operations of one forward pass, two a multiply-add, with the mixing of queries.
        cache: Scalars in a decoding cache for all tokens.
    """

    length: int
    flops: int
    cache: int


def costs(attention: Attention, width: int, lengths: Sequence[int]) -> list[Cost]:
    """Return the cost of self-attention at these lengths."""
    per_token = attention.cache_size(width, width)
    return [Cost(length, operations(attention, width, length), per_token * length) for length in lengths]


def model_costs(config: ModelConfig, lengths: Sequence[int]) -> list[Cost]:
    """Return the cost of all attention layers of a model; only layers of a decoder have a cache."""
    width, stacks = config.width, config.attentions()
    per_token = sum(
        attention.cache_size(width, width) for name, found in stacks.items() if name != "encoder" for attention in found
    )
    return [Cost(length, _model_operations(config, length), per_token * length) for length in lengths]


def operations(attention: Attention, width: int, length: int, keys: int | None = None) -> int:
    """Return the floating-point operations for `length` queries and `keys` keys (by default as many).

    `Attention.flops` counts matrix products only. Here, as in Cordonnier et al. (2020), the heads * shared_dim
    multiplications that mix one query count too.
    """
    inner = attention.inner if isinstance(attention, Gated) else attention
    mixing = inner.num_heads * inner.shared_dim if isinstance(inner, Collaborative) else 0
    return attention.flops(width, width, length, length if keys is None else keys) + 2 * length * mixing


def break_even_length(attention: Attention, other: Attention, width: int) -> int | None:
    """Return the longest sequence for which `attention` takes no more operations than `other`.

    For collaborative attention of shared_dim 384 in place of BERT-base's it is 152: projections become cheaper, and the
    num_heads * shared_dim products of every pair of tokens dearer.

    Returns:
        Length in tokens; 0 if `attention` takes more operations from the first token on, None if it never does.
    """
    return _last_length(lambda length: operations(attention, width, length) > operations(other, width, length))


def model_break_even(config: ModelConfig, other: ModelConfig) -> int | None:
    """Return the `break_even_length` of all attention layers of two models together."""
    return _last_length(lambda length: _model_operations(config, length) > _model_operations(other, length))


def _model_operations(config: ModelConfig, length: int) -> int:
    return sum(
        operations(attention, config.width, *config.attention_lengths(name, length))
        for name, attentions in config.attentions().items()
        for attention in attentions
    )


def _last_length(dearer: Callable[[int], bool]) -> int | None:
    """Return the last length that is not dearer; 0 and None as for `break_even_length`."""
    if dearer(1):
        return 0
    low, high = 1, 2
    while not dearer(high):
        low, high = high, 2 * high
        if high > _LONGEST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if dearer(middle) else (middle, high)
    return low
