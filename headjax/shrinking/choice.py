"""One option of every sub-layer, chosen by an integer program, and the choice as data and as a table.

The program takes the least sum of damages within budgets.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headjax.core import numbers
from headjax.core.errors import HeadjaxError
from headjax.core.numbers import brief
from headjax.heads.head_id import HeadId
from headjax.models.config import HEAD_STACKS
from headjax.models.walk import FEED_FORWARD
from headjax.report.tables import Column, Table

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
    """The options of every sub-layer, the whole one first, and what all else costs."""

    options: Mapping[str, tuple[Option, ...]]  # by the name of the sub-layer
    rest: Mapping[str, float]  # costs of everything that is no sub-layer, by quantity
    damage: str  # measure of the damages: `kl`, `cosine`, `squared_difference` or `loss`
    parts: float = 0.0  # sum of the seconds of all sub-layers and the rest, each timed alone

    def whole(self, quantity: str) -> float:
        return self.cost([options[0] for options in self.options.values()], quantity)

    def cost(self, chosen: Sequence[Option], quantity: str) -> float:
        return self.rest[quantity] + sum(getattr(option, quantity) for option in chosen)

    def only(self, allowed: Callable[[Option], bool]) -> Prices:
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
    # Behind the columns of options are those of the levels that the sub-layers of a stack may take together.
    staying = dict.fromkeys(_level(option) for option in options if uniform and option.kind != NO_LAYER)
    levels = {level: len(options) + number for number, level in enumerate(staying)}
    rows = [*_structure(options), *_equal_levels(options, levels)]
    for quantity, most in limits.items():
        scale = max(prices.whole(quantity), 1e-300)
        spent = {column: getattr(option, quantity) / scale for column, option in enumerate(options)}
        rows.append((spent, -np.inf, (most - prices.rest[quantity]) / scale + 1e-12))
    matrix = np.zeros((len(rows), len(options) + len(levels)))
    for line, (factors, _, _) in zip(matrix, rows, strict=True):
        line[list(factors)] = list(factors.values())
    damages = np.zeros(matrix.shape[1])
    damages[: len(options)] = [option.damage for option in options]
    unit = max(float(np.abs(damages).max()), 1e-300)
    solved: Any = milp(
        damages / unit,
        integrality=np.ones(len(damages)),
        bounds=Bounds(0.0, 1.0),
        constraints=LinearConstraint(matrix, [low for _, low, _ in rows], [high for _, _, high in rows]),
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


Constraint = tuple[Mapping[int, float], float, float]
"""Factors by column, low and high: low <= sum of factor * x[column] <= high."""


def _structure(options: Sequence[Option]) -> Iterator[Constraint]:
    """Yield: one option a sub-layer, a layer goes with all of its sub-layers, and one layer of a stack stays."""
    for columns in _columns(options, lambda option: option.place).values():
        yield dict.fromkeys(columns, 1.0), 1.0, 1.0
    going = _columns(options, lambda option: option.layer if option.kind == NO_LAYER else None)
    stacks: dict[str, list[int]] = {}
    for (stack, _), columns in going.items():
        stacks.setdefault(stack, []).append(columns[0])
        for column, following in itertools.pairwise(columns):
            yield {column: 1.0, following: -1.0}, 0.0, 0.0
    for columns in stacks.values():
        yield dict.fromkeys(columns, 1.0), 0.0, len(columns) - 1.0


Level = tuple[str, bool, str]
"""The head stack, whether feed-forwards or attentions, and the size that they may take together."""


def _level(option: Option) -> Level:
    return option.place.split("/")[0], option.heads is None, option.level


def _equal_levels(options: Sequence[Option], levels: Mapping[Level, int]) -> Iterator[Constraint]:
    """Yield the constraints that the sub-layers of a stack take one level, but for layers that go."""
    for whose in dict.fromkeys(level[:2] for level in levels):
        yield {column: 1.0 for level, column in levels.items() if level[:2] == whose}, 1.0, 1.0
    for column, option in enumerate(options):
        if _level(option) in levels:
            yield {column: 1.0, levels[_level(option)]: -1.0}, -np.inf, 0.0


def _columns(options: Sequence[Option], key: Callable[[Option], Any]) -> dict[Any, list[int]]:
    """Return the columns of options by a key, without those whose key is None."""
    columns: dict[Any, list[int]] = {}
    for column, option in enumerate(options):
        if key(option) is not None:
            columns.setdefault(key(option), []).append(column)
    return columns


FORMATS: Mapping[str, numbers.Format] = {
    "parameters": numbers.count, "flops": numbers.flops, "cache": numbers.size, "latency": numbers.duration
}  # fmt: skip
NAMES = {
    "parameters": "parameters of attention and feed-forwards",
    "flops": "FLOPs of an example",
    "cache": "KV cache of a token",
    "latency": "seconds of a forward pass",
}
DAMAGES = {
    "kl": "KL divergence of the predictions from the original model's, in nats",
    "cosine": "1 - cosine to the original model's embeddings",
    "squared_difference": "squared difference from the original model's numbers",
    "loss": "rise of the loss",
}
"""Degradations in words."""

CONVERSIONS = {"collaborative": "{} shared", "fixed": "size {}", "grouped": "{} KV", "latent": "latent {}"}
"""Conversions in words, with the first of their sizes."""

NOTES = (
    "No layer: measured without it, the attention behind it repaired, in equal shares of its sub-layers.",
    "Shared: dimensions of queries and keys that heads share. KV: KV heads. Latent: numbers that keys and values of "
    "all heads are made from.",
)


class ShrinkSummary(NamedTuple):
    """A smaller model as data: what each sub-layer keeps, and what that does.

    Attributes:
        layers: `place`, `form`, `heads`, `to`, `units`, `kind`, `level`, `damage`, its costs, `smaller` and `larger`:
            the next forms; of a removed layer `no layer`, in the old numbers.
        budget: `limit`, `whole` and `left` by quantity.
        predicted: `damage`, the degradation, its lower `bound`, `gap`, `measure`.
        measured: `damage` on `examples` evaluation examples.
        frontier: `quantity`, `share`, `damage`, `costs`, `removed_layers`.
        metric: the primary metric.
    """

    metric: str
    layers: Sequence[Mapping[str, Any]] = ()
    budget: Mapping[str, Mapping[str, Any]] = {}
    predicted: Mapping[str, Any] = {}
    measured: Mapping[str, Any] = {}
    frontier: Sequence[Point] = ()


class ChoiceSummary(NamedTuple):
    """A choice among options, and the quantity whose costs explain it."""

    prices: Prices
    quantity: str
    choice: Choice

    def layers(self) -> list[dict[str, Any]]:
        entries = []
        for option in self.choice.options.values():
            entry = {**option._asdict(), "form": option.description}
            for name, other in zip(("smaller", "larger"), self._neighbours(option), strict=True):
                entry[name] = None if other is None else {
                    "form": other.description, "damage": other.damage, self.quantity: self._cost(other)
                }  # fmt: skip
            entries.append(entry)
        return entries

    def _cost(self, option: Option) -> float:
        return float(getattr(option, self.quantity))

    def _neighbours(self, option: Option) -> tuple[Option | None, Option | None]:
        """Return the next smaller and the next larger option that no cheaper one beats, of this sub-layer alone."""
        if option.kind == NO_LAYER:
            return None, None
        cost, cost_of = self._cost(option), self._cost
        others = [each for each in self.prices.options[option.place] if each.kind != NO_LAYER]
        good = [
            each for each in others if not any(cost_of(o) < cost_of(each) and o.damage <= each.damage for o in others)
        ]
        smaller = max((each for each in good if cost_of(each) < cost), key=cost_of, default=None)
        return smaller, min((each for each in good if cost_of(each) > cost), key=cost_of, default=None)

    def layer_table(self) -> Table:
        """Return the form of every sub-layer that had a choice, with the reason: the changes of its neighbours."""
        columns = (
            Column("Layer"), Column("Keeps"), Column("Degradation", numbers.significant),
            Column("Next smaller"), Column("Next larger"),
        )  # fmt: skip
        notes = (
            f"Degradation: {DAMAGES[self.prices.damage]}, with this sub-layer alone so, repaired; estimated.",
            NOTES[0],
            f"Next smaller and larger: their change of the {NAMES[self.quantity]}, and of the degradation.",
            NOTES[1],
        )
        rows = []
        for option in self.choice.options.values():
            alternatives = self.prices.options[option.place]
            if option.kind == "whole" and len(set(map(self._cost, alternatives))) == 1:
                continue
            whole, (count, _, form) = alternatives[0], _short(option).partition(", ")
            of = "" if option.kind == NO_LAYER else f" of {whole.description.split()[0]}"
            kept = ", ".join(filter(None, (count + of, form))) if option != whole else f"all {whole.description}"
            changes = (self._change(option, other) for other in self._neighbours(option))
            rows.append((option.place.replace(f"/{FEED_FORWARD}", " units"), kept, option.damage, *changes))
        return Table(columns, rows, notes=notes)

    def _change(self, option: Option, other: Option | None) -> str:
        if other is None:
            return "-"
        cost, damage = self._cost(other) - self._cost(option), other.damage - option.damage
        changes = [("-" if cost < 0 else "+") + FORMATS[self.quantity](abs(cost))]
        changes += [("-" if damage < 0 else "+") + numbers.significant(abs(damage))]
        return f"{_short(other)}: {', '.join(changes)}"


def _short(option: Option) -> str:
    """Return a form in few words: `4 heads, 2 KV`."""
    count = option._replace(to="").description
    name, _, sizes = option.to.partition(":")
    return f"{count}, {CONVERSIONS[name].format(sizes.split(',')[0].split('=')[1])}" if name else count
