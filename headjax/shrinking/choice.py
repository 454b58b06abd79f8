"""One option of every place, chosen by an integer program: the least sum of damages within budgets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headjax.core.errors import HeadjaxError
from headjax.models.config import HEAD_STACKS

SECONDS = 60.0
"""Time limit of one integer program; its gap bounds its distance from the best."""

QUANTITIES = ("parameters", "flops", "cache", "latency")
"""Quantities with a budget: parameters of the layers, FLOPs of an example, bytes a cached token, seconds of a
forward."""


NO_LAYER = "layer"
"""Kind of the options of a layer that goes whole: all of its sub-layers take theirs, or none does."""


class Option(NamedTuple):
    """A form of one sub-layer, its damage and its costs."""

    place: str
    level: str = ""
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
    def told(self) -> str:
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


class Table(NamedTuple):
    """Options of every place, the whole sub-layer first."""

    options: Mapping[str, tuple[Option, ...]]
    rest: Mapping[str, float]
    damage: str
    parts: float = 0.0

    def whole(self, quantity: str) -> float:
        """Return the cost of the original model."""
        return self.cost([own[0] for own in self.options.values()], quantity)

    def cost(self, chosen: Sequence[Option], quantity: str) -> float:
        """Return the cost of a model of these options."""
        return self.rest[quantity] + sum(getattr(option, quantity) for option in chosen)

    def priced(self, quantity: str) -> Table:
        """Return the table with the cost of every option as its damage."""
        options = {
            place: tuple(one._replace(damage=getattr(one, quantity)) for one in own)
            for place, own in self.options.items()
        }
        return self._replace(options=options)

    def only(self, allowed: Callable[[Option], bool]) -> Table:
        """Return the table with these options alone, and the whole sub-layers."""
        kept = {
            place: tuple(one for one in own if one.kind == "whole" or allowed(one))
            for place, own in self.options.items()
        }
        return self._replace(options=kept)


class Choice(NamedTuple):
    """A chosen option of every place."""

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


def choose(table: Table, limits: Mapping[str, float], *, uniform: bool = False) -> Choice:
    """Return the options with the least sum of damages, one a place, that keep within all limits.

    minimise  sum over places p and options o of damage_po x_po,   x_po in {0, 1},   sum over o of x_po = 1
    subject to  rest_q + sum of cost_poq x_po <= limit_q  for every budgeted quantity q

    A layer goes with all of its sub-layers, and one layer of a stack stays.
    """
    found = choose_if_any(table, limits, uniform=uniform)
    if found is not None:
        return found
    for quantity, most in limits.items():
        least = least_cost(table, quantity, uniform=uniform)
        if least > most:
            raise HeadjaxError(f"{quantity}: at most {most:,.4g} asked for; the smallest choice has {least:,.4g}")
    raise HeadjaxError(f"{', '.join(limits)}: no choice keeps within all budgets at once")


def least_cost(table: Table, quantity: str, *, uniform: bool = False) -> float:
    """Return the cost of the smallest choice."""
    found = choose_if_any(table.priced(quantity), {}, uniform=uniform)
    assert found is not None  # the whole model is a choice
    return found.costs[quantity]


def choose_if_any(table: Table, limits: Mapping[str, float], *, uniform: bool = False) -> Choice | None:
    """Return the same, or None where nothing keeps within the limits."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    options = [option for own in table.options.values() for option in own]
    levels = _levels(options) if uniform else {}
    rows = [*_one_each(options), *_whole_layers(options), *_equal_levels(options, levels)]
    for quantity, most in limits.items():
        scale = max(table.whole(quantity), 1e-300)
        spent = {column: getattr(option, quantity) / scale for column, option in enumerate(options)}
        rows.append(_Row(spent, -np.inf, (most - table.rest[quantity]) / scale + 1e-12))
    matrix = np.zeros((len(rows), len(options) + len(levels)))
    for own, row in zip(matrix, rows, strict=True):
        own[list(row.terms)] = list(row.terms.values())
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
    costs = {quantity: table.cost(taken, quantity) for quantity in QUANTITIES}
    return Choice({option.place: option for option in taken}, damage, bound, gap, costs)


class _Row(NamedTuple):
    """A constraint: low <= sum of factor * x[column] <= high."""

    terms: Mapping[int, float]
    low: float
    high: float


def _one_each(options: Sequence[Option]) -> Iterator[_Row]:
    """Yield the constraints that every place takes one option."""
    for columns in _columns(options, lambda option: option.place).values():
        yield _Row(dict.fromkeys(columns, 1.0), 1.0, 1.0)


def _whole_layers(options: Sequence[Option]) -> Iterator[_Row]:
    """Yield the constraints that a layer goes with all of its sub-layers, and that one layer of a stack stays."""
    going = _columns(options, lambda option: option.layer if option.kind == NO_LAYER else None)
    stacks: dict[str, list[int]] = {}
    for (stack, _), columns in going.items():
        stacks.setdefault(stack, []).append(columns[0])
        for one, other in itertools.pairwise(columns):
            yield _Row({one: 1.0, other: -1.0}, 0.0, 0.0)
    for columns in stacks.values():
        yield _Row(dict.fromkeys(columns, 1.0), 0.0, len(columns) - 1.0)


def _levels(options: Sequence[Option]) -> dict[tuple[str, bool, str], int]:
    """Return the columns, behind those of options, of the levels that the sub-layers of a stack may take together."""
    levels = dict.fromkeys(_level(option) for option in options if option.kind != NO_LAYER)
    return {level: len(options) + number for number, level in enumerate(levels)}


def _level(option: Option) -> tuple[str, bool, str]:
    """Return a level, and whose it is: attentions or feed-forwards of a stack."""
    return option.place.split("/")[0], option.heads is None, option.level


def _equal_levels(options: Sequence[Option], levels: Mapping[tuple[str, bool, str], int]) -> Iterator[_Row]:
    """Yield the constraints that the sub-layers of a stack take one level, but for layers that go."""
    for whose in dict.fromkeys(level[:2] for level in levels):
        yield _Row({column: 1.0 for level, column in levels.items() if level[:2] == whose}, 1.0, 1.0)
    for column, option in enumerate(options):
        if _level(option) in levels:
            yield _Row({column: 1.0, levels[_level(option)]: -1.0}, -np.inf, 0.0)


def _columns(options: Sequence[Option], key: Callable[[Option], Any]) -> dict[Any, list[int]]:
    """Return the columns of options by a key, without those whose key is None."""
    found: dict[Any, list[int]] = {}
    for column, option in enumerate(options):
        if key(option) is not None:
            found.setdefault(key(option), []).append(column)
    return found
