"""Heads that go together: whole key and value groups, or the same number of heads of every layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from headjax.core.errors import HeadjaxError
from headjax.heads.head_id import HeadId, Values, all_heads, position
from headjax.heads.ordering import Order, Steps, fitting, flat, say_fewer, shared
from headjax.heads.site import Sites
from headjax.models.config import ModelConfig

Place = tuple[str, int]
"""A head stack and a layer in it."""


class Grouped(NamedTuple):
    """A head, its KV head in its layer, and a name that heads which share parameters have in common."""

    head: HeadId
    group: int
    home: tuple[Any, ...]


def grouped_heads(config: ModelConfig | Sites) -> Iterator[Grouped]:
    """Yield the heads of an architecture, or of sites, by stack, layer and position."""
    if isinstance(config, tuple):
        for site in config:
            for number, head in enumerate(site.head_ids()):
                home = (site.path, 0 if site.tied else number // site.heads)
                yield Grouped(head, int(site.groups[number % site.heads]), home)
        return
    for own in config.sites():
        for number, group in zip(own.attention.ids, own.attention.groups, strict=True):
            yield Grouped(HeadId(own.head_stack, own.layer, number), group, (own.head_stack, own.tied[0]))


def key_value_groups(config: ModelConfig | Sites, stacks: Collection[str] | None = None) -> Steps:
    """Return the heads of each KV head, by stack, layer and position.

    A head that shares no keys and values is a group of one.
    """
    groups: dict[tuple[str, int, int], list[HeadId]] = {}
    for head, group, _ in grouped_heads(config):
        if stacks is None or head.stack in stacks:
            groups.setdefault((head.stack, head.layer, group), []).append(head)
    return tuple(map(tuple, groups.values()))


def by_groups(config: ModelConfig | Sites, values: Values) -> Order:
    """Return the order of whole groups by the sum of their heads' scores, the least first, ties by name."""
    groups = (tuple(head for head in group if head in values) for group in key_value_groups(config))
    return flat(sorted(groups, key=lambda group: (sum(values[head] for head in group), group)))


def group_removals(config: ModelConfig, order: Iterable[HeadId]) -> Steps:
    """Return removals of whole groups, those with the least mean place in the order first."""
    rank = {head: place for place, head in enumerate(order)}
    groups = (tuple(head for head in group if head in rank) for group in key_value_groups(config))
    ranked = sorted(filter(None, groups), key=lambda group: fmean(rank[head] for head in group))
    return removals(config, flat(ranked), whole_groups=True)


def part(config: ModelConfig, order: Iterable[HeadId | str], share: float) -> Order:
    """Return the heads of an order that make up a share of all: whole groups, as many as fit."""
    named = dict.fromkeys(HeadId.parse(head) if isinstance(head, str) else head for head in order)
    for head in named:
        position(config, head)
    count = shared(share, len(all_heads(config)))
    gone, left = fitting(group_removals(config, named), count)
    say_fewer(len(gone), count, left, "the order names no others")
    return gone


def removals(config: ModelConfig | Sites, order: Order, *, whole_groups: bool = False) -> Steps:
    """Return an order as removals of one head each, or of whole groups.

    Layers that share their parameters lose a head together. A removal stands where the first of its heads does, and
    where layers share it at the mean of their first places.
    """
    homes = {head: (*home, group if whole_groups else head.head) for head, group, home in grouped_heads(config)}
    found: dict[Any, list[HeadId]] = {}
    places: dict[Any, dict[int, int]] = {}
    for place, head in enumerate(order):
        found.setdefault(homes[head], []).append(head)
        places.setdefault(homes[head], {}).setdefault(head.layer, place)
    return tuple(tuple(found[home]) for home in sorted(found, key=lambda home: fmean(places[home].values())))


def uniform_steps(config: ModelConfig, order: Order, *, whole_groups: bool = False) -> Steps:
    """Return removals after each of which all layers have equal numbers of heads and of KV heads.

    A step takes one head of every group of every layer, or one whole group of every layer: in each of them the one that
    comes first in the order. Where no head shares keys and values, both are one head of every layer. One
    head of every group, or one group, stays. Layers that share their parameters or a position bias lose the same heads:
    those with the lowest sum of places in the order.
    """
    rank = {head: place for place, head in enumerate(order)}
    layers: dict[Place, list[Order]] = {
        (stack, layer): []
        for stack in dict.fromkeys(head.stack for head in order)
        for layer in range(len(config.attentions()[stack]))
    }
    for group in key_value_groups(config):
        left = tuple(head for head in group if head in rank)
        if left:
            layers[left[0].stack, left[0].layer].append(left)
    number, size = _common_shape(layers)
    whole_groups = whole_groups or size == 1
    steps: list[list[HeadId]] = [[] for _ in range((number if whole_groups else size) - 1)]
    for together in _together(config, layers):
        cost = Counter({head.head: 0 for group in layers[together[0]] for head in group})
        for place in together:
            for group in layers[place]:
                cost.update({head.head: rank[head] for head in group})
        for step, part in zip(steps, _parts(layers[together[0]], cost, whole_groups), strict=False):
            step.extend(HeadId(stack, layer, head) for stack, layer in together for head in part)
    return tuple(map(tuple, steps))


def _parts(groups: Sequence[Order], cost: Mapping[int, int], whole_groups: bool) -> list[tuple[int, ...]]:
    """Return the numbers of a layer's heads that go together, in the order of their removal."""
    numbers = [tuple(head.head for head in group) for group in groups]
    if whole_groups:
        return sorted(numbers, key=lambda group: (sum(cost[head] for head in group), group))
    ranked = (sorted(group, key=lambda head: (cost[head], head)) for group in numbers)
    return list(zip(*ranked, strict=True))


def _common_shape(layers: Mapping[Place, Sequence[Order]]) -> tuple[int, int]:
    """Return the number of groups of every layer and their size; raise `HeadjaxError` where layers differ."""
    shapes = {tuple(map(len, groups)): f"{stack}/{layer}" for (stack, layer), groups in layers.items()}
    if len(shapes) != 1 or len({size for sizes in shapes for size in sizes}) != 1:
        found = [f"{place} has groups of {', '.join(map(str, sizes))} heads" for sizes, place in shapes.items()]
        raise HeadjaxError(
            "uniform: it takes layers with equal numbers of equal groups, of the head stacks that --stacks names; "
            f"{'; '.join(found) or 'the model has no heads left'}"
        )
    (sizes,) = shapes
    return len(sizes), sizes[0]


def _together(config: ModelConfig, layers: Iterable[Place]) -> Iterator[list[Place]]:
    """Yield the layers that lose the same heads: alone, or with those that share parameters or a position bias."""
    found: dict[tuple[Any, ...], list[Place]] = {}
    for stack, layer in layers:
        site = config.site(stack, layer)
        biased = site.slot == "attention" and config.stacks()[site.stack].position_bias is not None
        found.setdefault((stack, site.attention.ids if biased else site.tied[0]), []).append((stack, layer))
    yield from found.values()
