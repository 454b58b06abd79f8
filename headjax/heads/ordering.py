"""Orders of heads, and removals of heads that go together: KV groups, or the same number of every layer."""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from headjax.core.errors import HeadjaxError, require
from headjax.core.fields import Amount, read_amount
from headjax.heads.discovery import find_sites
from headjax.heads.head_id import HeadId, HeadLayer, Values
from headjax.heads.site import Sites, cuts_itself, find_heads, require_heads
from headjax.heads.surgery import regroups
from headjax.models.config import ModelConfig

Order = tuple[HeadId, ...]
"""Heads in the order of their removal."""

Steps = tuple[Order, ...]
"""Removals one after another, each of heads that go together."""


def by_score(values: Values) -> Order:
    """Return the one-shot order: heads by score, the least first, ties by name."""
    return tuple(sorted(values, key=lambda head: (values[head], head)))


def random_order(heads: Order, seed: int) -> Order:
    """Return the heads in a random order."""
    return tuple(heads[i] for i in np.random.default_rng(seed).permutation(len(heads)))


def flat(steps: Iterable[Order]) -> Order:
    """Return the heads of all removals, one after another."""
    return tuple(head for step in steps for head in step)


def ends(steps: Steps) -> tuple[int, ...]:
    """Return the numbers of heads that are gone before the first removal and after each one."""
    return tuple(itertools.accumulate(map(len, steps), initial=0))


def rounded_down(number: float) -> int:
    """Return a number of heads rounded down, but for the binary fractions of a percentage such as 28.7 % of 1000."""
    return int(round(number, 9))


def fitting(steps: Iterable[Order], count: int) -> tuple[Order, Steps]:
    """Return the heads of the removals that fit into `count`, one after another, and the removals that do not."""
    taken, left = list[HeadId](), list[Order]()
    for step in steps:
        if len(step) <= count - len(taken):
            taken.extend(step)
        else:
            left.append(step)
    return tuple(taken), tuple(left)


def fewer(went: int, count: int, left: Steps, none: str) -> str:
    """Return why fewer heads go than asked for: the least of the removals that are left, or `none` without one."""
    why = none
    if left:
        least = min(left, key=len)
        layers = dict.fromkeys(str(head).rpartition("/")[0] for head in least)
        cause = "layers stay equal" if len(layers) > 1 else "KV groups stay whole or equal"
        why = f"the least that could still go is {len(least)} heads, since {cause} ({next(iter(layers))})"
    return f"{went} heads go, not {count}: {why}"


def requested_count(sites: Sites, request: str) -> int:
    """Return the number of heads that `12` or `40%` means; a percentage is of all heads, rounded down."""
    total = len(find_heads(sites))
    count = rounded_down(amount_of(request).of(total))
    if count > total:
        raise HeadjaxError(f"remove: {request} asks for {count} heads, the model has {total}")
    return count


def amount_of(request: str) -> Amount:
    """Return the amount that `12` or `40%` means."""
    try:
        return read_amount(request, "12, or 40%", lambda amount: amount.relative or amount.number.is_integer())
    except ValueError:
        raise HeadjaxError(
            f"remove: {request!r} is no number of heads, percentage or list of heads such as encoder/3/7"
        ) from None


def grouped_heads(sites: Sites) -> Iterator[tuple[HeadId, int, tuple[str, int]]]:
    """Yield heads by layer and position, with their KV heads and names that layers of shared parameters share."""
    for site in sites:
        for number, head in enumerate(site.head_ids()):
            home = (site.path, 0 if site.tied else number // site.heads)
            yield head, int(site.groups[number % site.heads]), home


def key_value_groups(sites: Sites, among: Collection[HeadId] | None = None) -> Steps:
    """Return the heads of each KV head, by layer and position, those `among` some heads alone."""
    groups: dict[tuple[str, int, int], list[HeadId]] = {}
    for head, group, _ in grouped_heads(sites):
        if among is None or head in among:
            groups.setdefault((head.stack, head.layer, group), []).append(head)
    return tuple(map(tuple, groups.values()))


def by_groups(sites: Sites, values: Values) -> Order:
    """Return the order of whole groups by the sum of their heads' scores, the least first, ties by name."""
    groups = key_value_groups(sites, values)
    return flat(sorted(groups, key=lambda group: (sum(values[head] for head in group), group)))


def group_removals(sites: Sites, order: Iterable[HeadId]) -> Steps:
    """Return removals of whole groups, those with the least mean place in the order first."""
    rank = {head: place for place, head in enumerate(order)}
    ranked = sorted(key_value_groups(sites, rank), key=lambda group: fmean(rank[head] for head in group))
    return removals(sites, flat(ranked), whole_groups=True)


def removals(sites: Sites, order: Order, *, whole_groups: bool = False) -> Steps:
    """Return an order as removals of heads or whole groups, with those of shared layers at the mean of their places."""
    homes = {head: (*home, group if whole_groups else head.head) for head, group, home in grouped_heads(sites)}
    together: dict[Any, list[HeadId]] = {}
    places: dict[Any, dict[int, int]] = {}
    for place, head in enumerate(order):
        together.setdefault(homes[head], []).append(head)
        places.setdefault(homes[head], {}).setdefault(head.layer, place)
    return tuple(tuple(together[home]) for home in sorted(together, key=lambda home: fmean(places[home].values())))


def uniform_steps(sites: Sites, config: ModelConfig, order: Order, *, whole_groups: bool = False) -> Steps:
    """Return removals after each of which all layers have equal numbers of heads and of KV heads.

    A step takes one head of every group of every layer, or one whole group of every layer, the first ones in the order.
    One stays. Layers that share their parameters or a position bias lose the same heads, by the sum of their places.
    """
    rank = {head: place for place, head in enumerate(order)}
    layers: dict[HeadLayer, list[Order]] = {
        (stack, layer): []
        for stack in dict.fromkeys(head.stack for head in order)
        for layer in range(len(config.attentions()[stack]))
    }
    for group in key_value_groups(sites, rank):
        layers[group[0].stack, group[0].layer].append(group)
    number, size = _common_shape(layers)
    whole_groups = whole_groups or size == 1
    steps: list[list[HeadId]] = [[] for _ in range((number if whole_groups else size) - 1)]
    for together in _together(config, layers):
        cost = Counter[int]()
        for group in itertools.chain(*(layers[place] for place in together)):
            cost.update({head.head: rank[head] for head in group})
        # The numbers of heads that go together, in the order of their removal.
        numbers = [tuple(head.head for head in group) for group in layers[together[0]]]
        if whole_groups:
            parts = sorted(numbers, key=lambda group: (sum(cost[head] for head in group), group))
        else:
            parts = list(zip(*(sorted(group, key=lambda head: (cost[head], head)) for group in numbers), strict=True))
        for step, part in zip(steps, parts, strict=False):
            step.extend(HeadId(stack, layer, head) for stack, layer in together for head in part)
    return tuple(map(tuple, steps))


def _common_shape(layers: Mapping[HeadLayer, Sequence[Order]]) -> tuple[int, int]:
    """Return the number of groups of every layer and their size; raise `HeadjaxError` where layers differ."""
    shapes = {tuple(map(len, groups)): f"{stack}/{layer}" for (stack, layer), groups in layers.items()}
    if len(shapes) != 1 or len({size for sizes in shapes for size in sizes}) != 1:
        described = [f"{place} has groups of {', '.join(map(str, sizes))} heads" for sizes, place in shapes.items()]
        raise HeadjaxError(
            "uniform: it takes layers with equal numbers of equal groups, of the head stacks that --stacks names; "
            f"{'; '.join(described) or 'the model has no heads left'}"
        )
    (sizes,) = shapes
    return len(sizes), sizes[0]


def _together(config: ModelConfig, layers: Iterable[HeadLayer]) -> Iterable[list[HeadLayer]]:
    """Return the layers that lose the same heads: alone, or with those that share parameters or a position bias."""
    together: dict[tuple[Any, ...], list[HeadLayer]] = {}
    for stack, layer in layers:
        site = config.site(stack, layer)
        biased = site.slot == "attention" and config.stacks()[site.stack].position_bias is not None
        together.setdefault((stack, site.attention.ids if biased else site.tied[0]), []).append((stack, layer))
    return together.values()


def part_of(model: Any, order: Iterable[HeadId | str], share: float) -> Order:
    """Return the heads of an order that make up a share of all, in numbers that the model can hold.

    Whole KV groups go first, those with the least mean place in the order. Of a model whose code needs equal groups,
    what is left of the share goes as one head of every group of a layer.
    """
    require(isinstance(share, int | float) and 0.0 <= share <= 1.0, "share", f"must be from 0 to 1, got {share!r}")
    sites, any_numbers = find_sites(model), regroups(model)
    rank = {head: place for place, head in enumerate(dict.fromkeys(require_heads(sites, order)))}
    count, none = rounded_down(share * len(find_heads(sites))), "every layer keeps one of its heads"
    if any_numbers:
        removed, refused = fitting(group_removals(sites, rank), count)
        none = "the order names no others"
    else:
        removed, refused = fitting(_equal_removals(model, sites, rank, (), True), count)
        rest, still_refused = fitting(_equal_removals(model, sites, rank, removed, False), count - len(removed))
        removed, refused = removed + rest, refused + still_refused
    if len(removed) < count:
        warnings.warn(f"share: {fewer(len(removed), count, refused, none)}", stacklevel=3)
    return removed


def _equal_removals(
    model: Any, sites: Sites, rank: Mapping[HeadId, int], removed: Order, whole_groups: bool
) -> list[Order]:
    """Return the sets of heads that layers can lose, the lowest mean rank first.

    Each is a group of every layer of a site, or a head of every group that still exists.
    """
    steps = list[Order]()
    for site in sites:
        number = site.heads if site.kv_heads == 1 or cuts_itself(model, site) else site.kv_heads
        ids, size = site.head_ids(), site.heads // number
        groups = [ids[start : start + size] for start in range(0, len(ids), size)]
        if whole_groups:
            layers = [groups[start : start + number] for start in range(0, len(groups), number)]
            named = [[group for group in layer if rank.keys() >= set(group)] for layer in layers]
            rows = [sorted(groups, key=lambda group: sum(map(rank.__getitem__, group))) for groups in named]
        else:
            present = [group for group in groups if group[0] not in removed]
            rows = [[(head,) for head in sorted(rank.keys() & set(group), key=rank.__getitem__)] for group in present]
        steps += map(flat, itertools.islice(zip(*rows, strict=False), (number if whole_groups else size) - 1))
    return sorted(steps, key=lambda step: fmean(rank[head] for head in step))
