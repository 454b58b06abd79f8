"""What formulations cost at a sequence length, and from which length on one costs more than another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headjax.attention import Attention, Collaborative

_LONGEST = 1 << 24


class Cost(NamedTuple):
    """One attention layer at one sequence length.

    Attributes:
        length: tokens.
        flops: floating-point operations of one forward, two a multiply-add, element-wise mixing of queries included.
        cache: scalars that a decoding cache holds for all tokens.
    """

    length: int
    flops: int
    cache: int


def costs(attention: Attention, width: int, lengths: Sequence[int]) -> list[Cost]:
    """What self-attention costs at these lengths."""
    per_token = attention.cache_size(width, width)
    return [Cost(length, operations(attention, width, length), per_token * length) for length in lengths]


def operations(attention: Attention, width: int, length: int) -> int:
    """Floating-point operations of self-attention over `length` tokens, element-wise mixing of queries included.

    `Attention.flops` counts matrix products only. Cordonnier et al. (2020) count the heads * shared_dim multiplications
    that mix one query as well.
    """
    mixing = attention.num_heads * attention.shared_dim if isinstance(attention, Collaborative) else 0
    return attention.flops(width, width, length, length) + 2 * length * mixing


def break_even_length(attention: Attention, other: Attention, width: int) -> int | None:
    """The longest sequence for which `attention` takes no more operations than `other`.

    Collaborative attention of shared_dim 384 in place of BERT-base's gives 152, because projections get cheaper and the
    num_heads * shared_dim products of every pair of tokens dearer.

    Returns:
        The length; 0 when it takes more from the first token on, None when it never does.
    """

    def dearer(length: int) -> bool:
        return operations(attention, width, length) > operations(other, width, length)

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
