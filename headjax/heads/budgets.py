"""The fewest heads to remove so that a model fits a number of parameters or operations, counted from configs alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headjax.attention.formulation import Attention
from headjax.attention.module import NoHeads
from headjax.core import tensors
from headjax.core.errors import HeadjaxError
from headjax.core.tensors import flatten
from headjax.heads.head_id import HeadId, tied_heads
from headjax.heads.ordering import Order
from headjax.models.config import ModelConfig


def count_parameters(config: ModelConfig) -> int:
    """Return the number of parameters."""
    return tensors.count(config.tensors())


def without_heads(config: ModelConfig, removed: Iterable[HeadId]) -> ModelConfig:
    """Return the config of the model without these heads, as `headjax.prune` makes it.

    Shared dimensions that no head reads any more (collaborative, Tucker) are seen in the parameters alone and stay.

    Args:
        config: architecture of the whole model.
        removed: heads; those that share their parameters with one of them go with it.
    """
    gone = {tied for head in removed for tied in tied_heads(config, head)}
    layers = {name: list(stack.layers) for name, stack in config.stacks().items()}
    for site in config.sites():
        ids = [HeadId(site.head_stack, site.layer, head) for head in site.attention.ids]
        kept = [place for place, head in enumerate(ids) if head not in gone]
        if len(kept) < len(ids):
            changed: dict[str, Any] = {site.slot: _left(site.attention, kept, config.width)}
            layers[site.stack][site.layer] = dataclasses.replace(layers[site.stack][site.layer], **changed)
    stacks = config.stacks().items()
    return config.replace_stacks({name: dataclasses.replace(old, layers=tuple(layers[name])) for name, old in stacks})


def _left(attention: Attention, kept: list[int], width: int) -> Attention:
    """Return the layer with the heads at these positions alone."""
    if kept:
        return attention.with_heads(kept)
    names = flatten(attention.tensors(width, width))
    return NoHeads(output_bias=any(name.split("/")[-1] == "output_bias" for name in names))


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
        config: architecture of the whole model.
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
