"""How many heads to remove at each step of a pruning curve."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

PERCENTAGES = tuple(range(5, 101, 5))
"""5, 10, ..., 100, the steps of Michel et al.'s BERT experiments."""


def percent_steps(total: int, percentages: Iterable[int] = PERCENTAGES) -> list[int]:
    """floor(total * p / 100) for each p: 7, 14, 21, 28, 36, ..., 144 of 144 (Michel et al.'s code for BERT)."""
    return [total * percentage // 100 for percentage in percentages]


def tenth_steps(total: int) -> list[int]:
    """ceil(total * i / 10) for i = 0, ..., 9: 0, 29, 58, ..., 260 of 288 (Michel et al.'s code for translation)."""
    return [-(-total * i // 10) for i in range(10)]


def fraction_steps(total: int, fractions: Sequence[float]) -> list[int]:
    """The number of heads nearest to each fraction of them."""
    return [round(total * fraction) for fraction in fractions]
