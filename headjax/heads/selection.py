"""Which heads a request such as `40%`, `12` or `encoder/3/7,encoder/5/0` removes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from headjax.core.errors import HeadjaxError
from headjax.heads.head_id import HeadId, all_heads, position
from headjax.heads.ordering import Order
from headjax.models.config import ModelConfig


def explicit_heads(config: ModelConfig, request: str) -> Order | None:
    """The heads that a request names one by one, separated by commas; None if it gives a number or a percentage.

    Raises:
        HeadjaxError: a head that does not exist.
    """
    if "/" not in request:
        return None
    heads = tuple(HeadId.parse(text.strip()) for text in request.split(","))
    for head in heads:
        position(config, head)
    return heads


def requested_count(config: ModelConfig, request: str) -> int:
    """How many heads `12` or `40%` are; a percentage is of all heads the model has, rounded down.

    Raises:
        HeadjaxError: it is neither, or more than there are.
    """
    total = len(all_heads(config))
    amount = amount_of(request)
    # Rounding first keeps decimal percentages such as 28.7 % of 1000 from losing a head to binary fractions.
    count = int(round(total * amount.number / 100.0, 9)) if amount.percent else int(amount.number)
    if count > total:
        raise HeadjaxError(f"remove: {request} asks for {count} heads, the model has {total}")
    return count


class Amount(NamedTuple):
    """So many heads, or so many percent of all."""

    number: float
    percent: bool


def amount_of(request: str) -> Amount:
    """Reads `12` or `40%`.

    Raises:
        HeadjaxError: it is neither.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(%?)", request.strip())
    if match is None or ("." in match[1] and not match[2]):
        raise HeadjaxError(
            f"remove: {request!r} is no number of heads, percentage or list of heads such as encoder/3/7"
        )
    return Amount(float(match[1]), bool(match[2]))


def select(config: ModelConfig, request: str, order: Order | None = None) -> Order:
    """The heads to remove.

    Args:
        config: the architecture.
        request: `12`, `40%`, or heads by name, separated by commas.
        order: heads in the order of their removal; needed unless heads are named.

    Raises:
        HeadjaxError: a bad request, no order, or an order with fewer heads than asked for.
    """
    named = explicit_heads(config, request)
    if named is not None:
        return named
    count = requested_count(config, request)
    if order is None:
        raise HeadjaxError(f"remove: {request} needs an order of heads; name a score")
    if count > len(order):
        raise HeadjaxError(f"remove: {request} asks for {count} heads, only {len(order)} may be removed")
    return order[:count]


class Within(NamedTuple):
    """The outcome of a search for the most heads that can go.

    Attributes:
        heads: the heads to remove.
        value: the metric without them.
        baseline: the metric with all heads.
    """

    heads: Order
    value: float
    baseline: float


def most_within(order: Order, evaluate: Callable[[Order], float], drop: float) -> Within:
    """As many heads from the front of the order as cost at most `drop` of a metric, by bisection.

    The metric is taken to fall, on the whole, as heads go; the result itself is always one that was evaluated.

    Args:
        order: heads in the order of their removal.
        evaluate: the metric without the given heads; more is better.
        drop: how much of the metric may be lost, in its own unit.

    Raises:
        HeadjaxError: a negative drop.
    """
    if drop < 0.0:
        raise HeadjaxError(f"drop: must not be negative, got {drop}")
    baseline = evaluate(())
    best = Within((), baseline, baseline)
    low, high = 0, len(order)
    while low < high:
        middle = (low + high + 1) // 2
        value = evaluate(order[:middle])
        if value >= baseline - drop:
            best = Within(order[:middle], value, baseline)
            low = middle
        else:
            high = middle - 1
    return best
