"""The fewest heads to remove so that a model fits a number of parameters or FLOPs, counted from configs alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headjax.core import tensors
from headjax.core.errors import HeadjaxError
from headjax.heads.ordering import Order
from headjax.heads.surgery import without_heads
from headjax.models.config import ModelConfig


def count_parameters(config: ModelConfig) -> int:
    """Return the number of parameters."""
    return tensors.count(config.tensors())


def heads_for_budget(
    config: ModelConfig,
    order: Order,
    measure: Callable[[ModelConfig], float],
    most: float,
    name: str,
    stops: Sequence[int] | None = None,
) -> Order:
    """Return the fewest heads from the front of the order whose removal brings the model within a budget.

    Args:
        config: architecture of the original model.
        order: heads in the order of their removal.
        measure: size of an architecture, such as `count_parameters`; it falls with every head.
        most: largest size.
        name: name of the size in the error.
        stops: numbers of heads that may be gone, rising from 0 (`headjax.heads.ordering.ends`); None is every number.

    Raises:
        HeadjaxError: the model is larger without all heads of the order.
    """
    stops = range(len(order) + 1) if stops is None else stops
    least = measure(without_heads(config, order))
    if least > most:
        raise HeadjaxError(
            f"{name}: at most {most:,.0f} asked for; removing all {len(order)} heads leaves {least:,.0f}"
        )
    low, high = 0, len(stops) - 1
    while low < high:
        middle = (low + high) // 2
        if measure(without_heads(config, order[: stops[middle]])) <= most:
            high = middle
        else:
            low = middle + 1
    return order[: stops[low]]
