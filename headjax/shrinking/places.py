"""Places: the sub-layers of a model that can become smaller, and the rest of each at a level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headjax.core.errors import HeadjaxError
from headjax.heads.units import units_to_remove
from headjax.models.config import head_stack_at
from headjax.models.model import Model
from headjax.models.walk import FEED_FORWARD
from headjax.nn import Kind
from headjax.shrinking.grid import Grid, Level, head_groups, heads_left


class SubLayer(NamedTuple):
    """A sub-layer: its stack, the layers that share its parameters, in the order of computation, and its slot."""

    stack: str
    tied: tuple[int, ...]
    slot: str

    @property
    def head_stack(self) -> str:
        """Head stack of an attention."""
        return head_stack_at(self.stack, self.slot)


class Place(NamedTuple):
    """A sub-layer."""

    name: str
    at: SubLayer
    attention: Kind | None = None
    units: int = 0

    @property
    def layer(self) -> int:
        """Number of its layer."""
        return self.at.tied[0]

    @property
    def size(self) -> int:
        """Number of units, or of groups of heads that go together."""
        return self.units if self.attention is None else len(head_groups(self.attention))

    def removals(self, grid: Grid) -> list[Level]:
        """Return the levels that leave fewer heads or units, each another number."""
        found: dict[int, Level] = {}
        for level in grid.of_units() if self.attention is None else grid.removals():
            left = self.count(level)
            if left < self.size:
                found.setdefault(left, level)
        return list(found.values())

    def count(self, level: Level) -> int:
        """Return the number of units, or of groups of heads, that a level leaves."""
        if self.attention is None:
            return self.units - units_to_remove(self.units, 1.0 - level.units)
        return heads_left(self.size, level.heads)

    def left(self, order: Sequence[int], level: Level) -> tuple[int, ...]:
        """Return the positions of the heads that a level leaves, whole groups of the order gone."""
        if self.attention is None:
            return ()
        group_of = {member: group for group in head_groups(self.attention) for member in group}
        groups = list(dict.fromkeys(group_of[position] for position in order))
        kept = groups[len(groups) - self.count(level) :]
        return tuple(sorted(member for group in kept for member in group))


def places_of(model: Model) -> list[Place]:
    """Return the sub-layers in the order of computation."""
    found = []
    for stack, own in model.config.stacks().items():
        for number, layer in enumerate(own.layers):
            if len(own.tied_layers(number)) > 1:
                raise HeadjaxError(f"{stack}/{number}: shares its parameters with other layers; none shrinks alone")
            for slot in layer.slots:
                at = SubLayer(stack, (number,), slot)
                if slot == FEED_FORWARD:
                    found.append(Place(f"{stack}/{number}/{slot}", at, units=layer.hidden))
                else:
                    found.append(Place(f"{at.head_stack}/{number}", at, getattr(layer, slot)))
    return found
