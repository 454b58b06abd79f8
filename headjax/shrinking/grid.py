"""Levels: the smaller forms of a sub-layer that are measured, one table for all models."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from headjax.conversion.model import parse_target
from headjax.conversion.target import Target
from headjax.conversion.turning import turns
from headjax.core.errors import ConfigError, require
from headjax.core.fields import Checked, Share
from headjax.nn import Kind


class Level(NamedTuple):
    """A smaller form of an attention layer or of a feed-forward, in shares of its parts."""

    heads: float = 1.0
    to: str = ""
    size: float = 1.0
    units: float = 1.0

    def __str__(self) -> str:
        if self == NONE:
            return "no layer"
        if self.units < 1.0:
            return f"units {self.units:.3g}"
        return f"heads {self.heads:.3g}" + (f" {self.to} {self.size:.3g}" if self.to else "")


WHOLE = Level()

NONE = Level(heads=0.0, units=0.0)
"""A layer that goes whole: the stream passes by it."""

FOR_CACHE = (
    Level(1.0, "grouped", 0.5),
    Level(1.0, "grouped", 0.25),
    Level(0.5, "grouped", 0.5),
    *(Level(1.0, "latent", size) for size in (0.625, 0.5, 0.375, 0.25, 0.125)),
    Level(0.5, "latent", 0.5),
)
"""Forms of keys and values, for layers whose keys and values are cached. For a small cache most layers take latents, of
sizes that differ, so these are closer together."""

FOR_SIZE = (
    *(Level(heads, "collaborative", 0.5) for heads in (1.0, 0.75, 0.5, 1 / 3)),
    Level(1.0, "collaborative", 0.25),
    Level(0.5, "collaborative", 0.25),
    Level(1.0, "fixed", 0.5),
    Level(1.0, "fixed", 0.25),
    Level(0.5, "fixed", 0.5),
)
"""Sizes of queries and keys, for other layers. Shared ones lose less at equal size. Heads of fewer dimensions take
fewer FLOPs: every head reads all shared ones, so that on long texts these cost more than the whole layer."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid(Checked):
    """The levels that are measured.

    Attributes:
        heads: shares of the heads that are left, each with its output projection refitted.
        units: shares of the units of feed-forwards that are left.
        cached: further levels of layers whose keys and values are cached: the self-attention of decoders.
        others: further levels of all other attention layers.
        layers: whether whole layers may go.
    """

    heads: tuple[Share, ...] = (0.75, 0.5, 1 / 3, 1 / 6, 0.0)
    units: tuple[Share, ...] = (0.85, 0.7, 0.55, 0.4, 0.3, 0.2, 0.1, 0.05)
    cached: tuple[Level, ...] = FOR_CACHE
    others: tuple[Level, ...] = FOR_SIZE
    layers: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(all(share > 0.0 for share in self.units), "units", "a feed-forward keeps one unit at least")

    def removals(self) -> list[Level]:
        """Return the levels with fewer heads alone."""
        return [Level(share) for share in self.heads if share < 1.0]

    def conversions(self, head_stack: str) -> Sequence[Level]:
        """Return the levels with a conversion."""
        return self.cached if head_stack == "decoder" else self.others

    def of_units(self) -> list[Level]:
        """Return the levels of a feed-forward."""
        return [Level(units=share) for share in self.units if share < 1.0]


def head_groups(attention: Kind) -> list[tuple[int, ...]]:
    """Return the positions of the heads that go together: those that read one KV head."""
    groups: dict[int, list[int]] = {}
    for place, group in enumerate(attention.groups):
        groups.setdefault(group, []).append(place)
    return [tuple(group) for group in groups.values()]


def heads_left(count: int, share: float) -> int:
    """Return the number of heads (or groups of them) that a share leaves; one at least unless the share is 0."""
    return 0 if share == 0.0 else min(max(round(share * count), 1), count)


def target_of(level: Level, attention: Kind, width: int) -> Target | None:
    """Return the conversion of a level for a layer with the level's heads; None where the layer cannot have it."""
    text = _target_text(level, attention, width)
    target = None if text is None else parse_target(text)
    if not isinstance(target, Target):
        return None
    try:
        target.check(attention, width, width)
    except ConfigError:
        return None
    return target


def _target_text(level: Level, attention: Kind, width: int) -> str | None:
    """Return a conversion with the sizes of a layer; None where these are no smaller than the layer's."""
    size = getattr(attention, "head_dim", 0)
    value = getattr(attention, "values", size)
    heads, groups = attention.num_heads, len(set(attention.groups))
    if level.to == "grouped":
        left = heads_left(groups, level.size)
        return f"grouped:kv_heads={left}" if left < groups else None
    if level.to == "latent":
        # Beside a latent, keys that turn keep their position: with it, the cache is no more than the share.
        rank = max(round(level.size * groups * (size + value)) - turns(attention), 1)
        return f"latent:rank={min(rank, width)}" if rank < groups * (size + value) else None
    even = max(2 * round(level.size * size / 2), 2)
    if level.to == "fixed":
        return f"fixed:head_dim={even},value_dim={value}" if even < size and groups == heads else None
    shared = max(2 * round(level.size * groups * size / 2), 2)
    return f"collaborative:shared_dim={shared}" if shared < groups * size else None
