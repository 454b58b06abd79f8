"""One option of every sub-layer, chosen by an integer program: the least sum of damages within budgets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.core.numbers import brief
from headjax.heads.head_id import HeadId
from headjax.models.config import HEAD_STACKS

SECONDS = 60.0
"""Time limit of one integer program; its gap bounds its distance from the best."""

QUANTITIES = ("parameters", "flops", "cache", "latency")
"""Quantities with a budget: parameters of the layers, FLOPs of an example, bytes a cached token, seconds of a
forward."""

SHARES = tuple(share / 20 for share in range(19, 1, -1))
"""Budgets of a frontier, as shares of the original model."""

NO_LAYER = "layer"
"""Kind of the options of a layer that goes whole: all of its sub-layers take theirs, or none does."""


class Option(NamedTuple):
    """A form of one sub-layer, its damage and its costs."""

    place: str  # name of the sub-layer
    level: str = ""  # its size; empty of the whole one
    kind: str = "whole"
    heads: tuple[int, ...] | None = None
    to: str = ""
    units: int | None = None
    damage: float = 0.0
    parameters: float = 0.0
    flops: float = 0.0
    cache: float = 0.0
    latency: float = 0.0

    @property
    def description(self) -> str:
        """The form in words."""
        if self.kind == NO_LAYER:
            return "no layer"
        if self.heads is None:
            return f"{self.units:,} units"
        count = f"{len(self.heads)} head{'s' * (len(self.heads) != 1)}" if self.heads else "no heads"
        return f"{count}, {self.to}" if self.to else count

    @property
    def layer(self) -> tuple[str, str]:
        """The stack and the number of the layer whose sub-layer it is."""
        head_stack, number, *_ = self.place.split("/")
        return HEAD_STACKS[head_stack][0], number


class Prices(NamedTuple):
    """The options of every sub-layer, the whole one first, and what all else costs.

    Attributes:
        options: by the name of the sub-layer.
        rest: costs of everything that is no sub-layer, by quantity.
        damage: measure of the damages: `kl`, `cosine`, `squared_difference` or `loss`.
        parts: sum of the seconds of all sub-layers and the rest, each timed alone.
    """

    options: Mapping[str, tuple[Option, ...]]
    rest: Mapping[str, float]
    damage: str
    parts: float = 0.0

    def whole(self, quantity: str) -> float:
        """Return the cost of the original model."""
        return self.cost([options[0] for options in self.options.values()], quantity)

    def cost(self, chosen: Sequence[Option], quantity: str) -> float:
        """Return the cost of a model of these options."""
        return self.rest[quantity] + sum(getattr(option, quantity) for option in chosen)

    def only(self, allowed: Callable[[Option], bool]) -> Prices:
        """Return the prices of these options alone, and of the whole sub-layers."""
        kept = {
            name: tuple(option for option in options if option.kind == "whole" or allowed(option))
            for name, options in self.options.items()
        }
        return self._replace(options=kept)


class Choice(NamedTuple):
    """A chosen option of every sub-layer."""

    options: Mapping[str, Option]
    damage: float
    bound: float
    gap: float
    costs: Mapping[str, float]

    @property
    def removed(self) -> frozenset[tuple[str, int]]:
        """The layers that go, by stack and number."""
        gone = (option.layer for option in self.options.values() if option.kind == NO_LAYER)
        return frozenset((stack, int(number)) for stack, number in gone)


class Point(NamedTuple):
    """A point of a frontier: the least damage within a share of the original model's cost."""

    quantity: str
    share: float
    damage: float
    costs: Mapping[str, float]
    removed_layers: int = 0


class Shrunk(NamedTuple):
    """Result of `shrink`."""

    model: Any
    removed: tuple[HeadId, ...]
    choice: Choice
    frontier: tuple[Point, ...]
    prices: Prices

    def __repr__(self) -> str:
        return brief(self)


def choose(prices: Prices, limits: Mapping[str, float], *, uniform: bool = False) -> Choice:
    """Return the options with the least sum of damages, one a sub-layer, that keep within all limits.

    minimise  sum over sub-layers p and options o of damage_po x_po,   x_po in {0, 1},   sum over o of x_po = 1
    subject to  rest_q + sum of cost_poq x_po <= limit_q  for every budgeted quantity q

    A layer goes with all of its sub-layers, and one layer of a stack stays. `uniform`: the sub-layers of a stack that
    stay are of one level.
    """
    choice = choose_if_any(prices, limits, uniform=uniform)
    if choice is not None:
        return choice
    for quantity, most in limits.items():
        least = least_cost(prices, quantity, uniform=uniform)
        if least > most:
            raise HeadjaxError(f"{quantity}: at most {most:,.4g} asked for; the smallest choice has {least:,.4g}")
    raise HeadjaxError(f"{', '.join(limits)}: no choice keeps within all budgets at once")


def least_cost(prices: Prices, quantity: str, *, uniform: bool = False) -> float:
    """Return the cost of the smallest choice: that of least damage where the cost is the damage."""
    options = {
        name: tuple(option._replace(damage=getattr(option, quantity)) for option in options)
        for name, options in prices.options.items()
    }
    return choose(prices._replace(options=options), {}, uniform=uniform).costs[quantity]


def frontier(prices: Prices, quantity: str, *, uniform: bool = False) -> tuple[Point, ...]:
    """Return the least damage within every share of the original model's cost that can be kept."""
    whole = prices.whole(quantity)
    points = [Point(quantity, 1.0, 0.0, {name: prices.whole(name) for name in QUANTITIES})]
    for share in SHARES:
        choice = choose_if_any(prices, {quantity: share * whole}, uniform=uniform)
        if choice is not None:
            points.append(Point(quantity, share, choice.damage, choice.costs, len(choice.removed)))
    return tuple(points)


def choose_if_any(prices: Prices, limits: Mapping[str, float], *, uniform: bool = False) -> Choice | None:
    """Return the choice of `choose`, or None where nothing keeps within the limits."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    options = [option for alternatives in prices.options.values() for option in alternatives]
    levels = _levels(options) if uniform else {}
    rows = [*_one_each(options), *_whole_layers(options), *_equal_levels(options, levels)]
    for quantity, most in limits.items():
        scale = max(prices.whole(quantity), 1e-300)
        spent = {column: getattr(option, quantity) / scale for column, option in enumerate(options)}
        rows.append(_Constraint(spent, -np.inf, (most - prices.rest[quantity]) / scale + 1e-12))
    matrix = np.zeros((len(rows), len(options) + len(levels)))
    for line, row in zip(matrix, rows, strict=True):
        line[list(row.factors)] = list(row.factors.values())
    damages = np.zeros(matrix.shape[1])
    damages[: len(options)] = [option.damage for option in options]
    unit = max(float(np.abs(damages).max()), 1e-300)
    solved: Any = milp(
        damages / unit,
        integrality=np.ones(len(damages)),
        bounds=Bounds(0.0, 1.0),
        constraints=LinearConstraint(matrix, [row.low for row in rows], [row.high for row in rows]),
        options={"time_limit": SECONDS, "mip_rel_gap": 1e-6},
    )
    if solved.x is None:
        return None
    taken = [option for option, x in zip(options, solved.x, strict=False) if x > 0.5]
    damage = sum(option.damage for option in taken)
    bound = min(float(solved.mip_dual_bound) * unit, damage)
    gap = 0.0 if damage == bound else (damage - bound) / max(abs(damage), 1e-300)
    costs = {quantity: prices.cost(taken, quantity) for quantity in QUANTITIES}
    return Choice({option.place: option for option in taken}, damage, bound, gap, costs)


class _Constraint(NamedTuple):
    """low <= sum of factor * x[column] <= high."""

    factors: Mapping[int, float]
    low: float
    high: float


def _one_each(options: Sequence[Option]) -> Iterator[_Constraint]:
    for columns in _columns(options, lambda option: option.place).values():
        yield _Constraint(dict.fromkeys(columns, 1.0), 1.0, 1.0)


def _whole_layers(options: Sequence[Option]) -> Iterator[_Constraint]:
    """Yield the constraints that a layer goes with all of its sub-layers, and that one layer of a stack stays."""
    going = _columns(options, lambda option: option.layer if option.kind == NO_LAYER else None)
    stacks: dict[str, list[int]] = {}
    for (stack, _), columns in going.items():
        stacks.setdefault(stack, []).append(columns[0])
        for column, following in itertools.pairwise(columns):
            yield _Constraint({column: 1.0, following: -1.0}, 0.0, 0.0)
    for columns in stacks.values():
        yield _Constraint(dict.fromkeys(columns, 1.0), 0.0, len(columns) - 1.0)


Level = tuple[str, bool, str]
"""The head stack, whether feed-forwards or attentions, and the size that they may take together."""


def _level(option: Option) -> Level:
    return option.place.split("/")[0], option.heads is None, option.level


def _levels(options: Sequence[Option]) -> dict[Level, int]:
    """Return the columns, behind those of options, of the levels that the sub-layers of a stack may take together."""
    levels = dict.fromkeys(_level(option) for option in options if option.kind != NO_LAYER)
    return {level: len(options) + number for number, level in enumerate(levels)}


def _equal_levels(options: Sequence[Option], levels: Mapping[Level, int]) -> Iterator[_Constraint]:
    """Yield the constraints that the sub-layers of a stack take one level, but for layers that go."""
    for whose in dict.fromkeys(level[:2] for level in levels):
        yield _Constraint({column: 1.0 for level, column in levels.items() if level[:2] == whose}, 1.0, 1.0)
    for column, option in enumerate(options):
        if _level(option) in levels:
            yield _Constraint({column: 1.0, levels[_level(option)]: -1.0}, -np.inf, 0.0)


def _columns(options: Sequence[Option], key: Callable[[Option], Any]) -> dict[Any, list[int]]:
    """Return the columns of options by a key, without those whose key is None."""
    columns: dict[Any, list[int]] = {}
    for column, option in enumerate(options):
        if key(option) is not None:
            columns.setdefault(key(option), []).append(column)
    return columns
