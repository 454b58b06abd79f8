"""One option of every place, chosen by an integer program: the least sum of damages within budgets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headjax.core.errors import HeadjaxError

SECONDS = 60.0
"""Time limit of one integer program; its gap bounds its distance from the best."""

QUANTITIES = ("parameters", "flops", "cache", "latency")
"""Quantities with a budget: parameters of the layers, FLOPs of an example, bytes a cached token, seconds of a
forward."""


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
        if self.heads is None:
            return f"{self.units:,} units"
        count = f"{len(self.heads)} head{'s' * (len(self.heads) != 1)}" if self.heads else "no heads"
        return f"{count}, {self.to}" if self.to else count


class Table(NamedTuple):
    """Options of every place, the whole sub-layer first."""

    options: Mapping[str, tuple[Option, ...]]
    rest: Mapping[str, float]
    damage: str
    parts: float = 0.0

    def whole(self, quantity: str) -> float:
        """Return the cost of the original model."""
        return self.cost([own[0] for own in self.options.values()], quantity)

    def least(self, quantity: str) -> float:
        """Return the cost that no choice goes below."""
        return self.cost([min(own, key=lambda one: getattr(one, quantity)) for own in self.options.values()], quantity)

    def cost(self, chosen: Sequence[Option], quantity: str) -> float:
        """Return the cost of a model of these options."""
        return self.rest[quantity] + sum(getattr(option, quantity) for option in chosen)

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


def choose(table: Table, limits: Mapping[str, float], *, uniform: bool = False) -> Choice:
    """Return the options with the least sum of damages, one a place, that keep within all limits.

    minimise  sum over places p and options o of damage_po x_po,   x_po in {0, 1},   sum over o of x_po = 1
    subject to  rest_q + sum of cost_poq x_po <= limit_q  for every budgeted quantity q
    """
    found = choose_if_any(table, limits, uniform=uniform)
    if found is not None:
        return found
    for quantity, most in limits.items():
        least = table.least(quantity)
        if least > most:
            raise HeadjaxError(f"{quantity}: at most {most:,.4g} asked for; the smallest choice has {least:,.4g}")
    raise HeadjaxError(f"{', '.join(limits)}: no choice keeps within all budgets at once")


def choose_if_any(table: Table, limits: Mapping[str, float], *, uniform: bool = False) -> Choice | None:
    """Return the same, or None where nothing keeps within the limits."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    options = [option for own in table.options.values() for option in own]
    places = {place: index for index, place in enumerate(table.options)}
    one_each = np.zeros((len(places), len(options)))
    for column, option in enumerate(options):
        one_each[places[option.place], column] = 1.0
    constraints = [LinearConstraint(one_each, 1.0, 1.0)]
    for quantity, most in limits.items():
        scale = max(table.whole(quantity), 1e-300)
        spent = np.array([getattr(option, quantity) for option in options]) / scale
        constraints.append(LinearConstraint(spent[None], -np.inf, (most - table.rest[quantity]) / scale + 1e-12))
    if uniform:
        equal = _equal_levels(options)
        if len(equal):
            constraints.append(LinearConstraint(equal, 0.0, 0.0))
    damages = np.array([option.damage for option in options])
    unit = max(float(np.abs(damages).max()), 1e-300)
    solved: Any = milp(
        damages / unit,
        integrality=np.ones(len(options)),
        bounds=Bounds(0.0, 1.0),
        constraints=constraints,
        options={"time_limit": SECONDS, "mip_rel_gap": 1e-6},
    )
    if solved.x is None:
        return None
    taken = [option for option, x in zip(options, solved.x, strict=True) if x > 0.5]
    damage = sum(option.damage for option in taken)
    bound = min(float(solved.mip_dual_bound) * unit, damage)
    gap = 0.0 if damage == bound else (damage - bound) / max(abs(damage), 1e-300)
    costs = {quantity: table.cost(taken, quantity) for quantity in QUANTITIES}
    return Choice({option.place: option for option in taken}, damage, bound, gap, costs)


def _equal_levels(options: Sequence[Option]) -> np.ndarray:
    """Return rows that are 0 where the sub-layers of one stack take the same level, or none takes it.

    A level that one of them lacks cannot be taken.
    """
    stacks: dict[tuple[str, bool], list[str]] = {}
    for option in options:
        own = stacks.setdefault((option.place.split("/")[0], option.heads is None), [])
        if option.place not in own:
            own.append(option.place)
    columns = {(option.place, option.level): column for column, option in enumerate(options)}
    rows = []
    for places in stacks.values():
        for level in dict.fromkeys(level for place, level in columns if place in places):
            for pair in itertools.pairwise(places):
                row = np.zeros(len(options))
                for place, sign in zip(pair, (1.0, -1.0), strict=True):
                    if (place, level) in columns:
                        row[columns[place, level]] = sign
                rows.append(row)
    return np.array(rows)
