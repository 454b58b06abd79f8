"""The search space of `shrink`: the sub-layers of a model, and the sizes that are tried of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from headjax.conversion.model import parse_target
from headjax.conversion.target import Target, is_rotary
from headjax.core.errors import ConfigError, HeadjaxError, require
from headjax.core.fields import Checked, Share
from headjax.heads.surgery import units_to_remove
from headjax.models.config import head_stack_at
from headjax.models.model import Model
from headjax.models.walk import FEED_FORWARD
from headjax.nn import Kind


class SubLayerSize(NamedTuple):
    """A size of an attention layer or of a feed-forward, in shares of its parts.

    >>> str(headjax.SubLayerSize(heads=0.5, to="grouped", size=0.5))
    'heads 0.5 grouped 0.5'
    """

    heads: float = 1.0
    to: str = ""  # conversion of the heads that are left
    size: float = 1.0  # of the conversion
    units: float = 1.0

    def __str__(self) -> str:
        if self == NO_LAYER_SIZE:
            return "no layer"
        if self.units < 1.0:
            return f"units {self.units:.3g}"
        return f"heads {self.heads:.3g}" + (f" {self.to} {self.size:.3g}" if self.to else "")


WHOLE = SubLayerSize()

NO_LAYER_SIZE = SubLayerSize(heads=0.0, units=0.0)
"""A layer that goes whole: the stream passes by it."""

FOR_CACHE = (
    SubLayerSize(1.0, "grouped", 0.5),
    SubLayerSize(1.0, "grouped", 0.25),
    SubLayerSize(0.5, "grouped", 0.5),
    *(SubLayerSize(1.0, "latent", size) for size in (0.625, 0.5, 0.375, 0.25, 0.125)),
    SubLayerSize(0.5, "latent", 0.5),
)
"""Sizes of keys and values, for layers that cache them. A small cache needs latents in most layers, so these are
closer together."""

FOR_SIZE = (
    *(SubLayerSize(heads, "collaborative", 0.5) for heads in (1.0, 0.75, 0.5, 1 / 3)),
    SubLayerSize(1.0, "collaborative", 0.25),
    SubLayerSize(0.5, "collaborative", 0.25),
    SubLayerSize(1.0, "fixed", 0.5),
    SubLayerSize(1.0, "fixed", 0.25),
    SubLayerSize(0.5, "fixed", 0.5),
)
"""Sizes of queries and keys, for other layers. Shared ones lose less at equal size. Heads of fewer dimensions take
fewer FLOPs: every head reads all shared ones, so that on long texts these cost more than the whole layer."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchSpace(Checked):
    """The sizes that are measured.

        >>> headjax.SearchSpace(layers=False).heads[:2]
        (0.75, 0.5)

    Attributes:
        heads: shares of the heads that are left, each with its output projection refitted.
        units: shares of the units of feed-forwards that are left.
        cached: further sizes of layers whose keys and values are cached: the self-attention of decoders.
        others: further sizes of all other attention layers.
        layers: whether whole layers may go.
    """

    heads: tuple[Share, ...] = (0.75, 0.5, 1 / 3, 1 / 6, 0.0)
    units: tuple[Share, ...] = (0.85, 0.7, 0.55, 0.4, 0.3, 0.2, 0.1, 0.05)
    cached: tuple[SubLayerSize, ...] = FOR_CACHE
    others: tuple[SubLayerSize, ...] = FOR_SIZE
    layers: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(all(share > 0.0 for share in self.units), "units", "a feed-forward keeps one unit at least")


class SubLayer(NamedTuple):
    """A sub-layer that can become smaller: an attention layer, or a feed-forward of some units."""

    stack: str
    layer: int
    slot: str
    attention: Kind | None = None
    units: int = 0

    @property
    def head_stack(self) -> str:
        return head_stack_at(self.stack, self.slot)

    @property
    def name(self) -> str:
        """`decoder/3` of an attention, by its head stack; `decoder/3/feed_forward`."""
        return f"{self.stack}/{self.layer}/{self.slot}" if self.attention is None else f"{self.head_stack}/{self.layer}"

    @property
    def parts(self) -> int:
        """Number of units, or of groups of heads that go together."""
        return self.units if self.attention is None else len(head_groups(self.attention))

    def removals(self, space: SearchSpace) -> list[SubLayerSize]:
        """Return the sizes that leave fewer heads or units alone, each another number."""
        sizes: dict[int, SubLayerSize] = {}
        for share in space.units if self.attention is None else space.heads:
            size = SubLayerSize(units=share) if self.attention is None else SubLayerSize(share)
            if self.count(size) < self.parts:
                sizes.setdefault(self.count(size), size)
        return list(sizes.values())

    def conversions(self, space: SearchSpace) -> Sequence[SubLayerSize]:
        if self.attention is None:
            return ()
        return space.cached if self.head_stack == "decoder" else space.others

    def count(self, size: SubLayerSize) -> int:
        """Return the number of units, or of groups of heads, that a size leaves; one at least unless its share is 0."""
        if self.attention is None:
            return self.units - units_to_remove(self.units, 1.0 - size.units)
        return heads_left(self.parts, size.heads)

    def heads_left(self, order: Sequence[int], size: SubLayerSize) -> tuple[int, ...]:
        """Return the positions of the heads that a size leaves once whole groups have gone in this order."""
        if self.attention is None:
            return ()
        group_of = {member: group for group in head_groups(self.attention) for member in group}
        groups = list(dict.fromkeys(group_of[position] for position in order))
        kept = groups[len(groups) - self.count(size) :]
        return tuple(sorted(member for group in kept for member in group))


def sub_layers_of(model: Model) -> list[SubLayer]:
    """Return the sub-layers in the order of computation."""
    sub_layers = []
    for stack, stack_config in model.config.stacks().items():
        for number, layer in enumerate(stack_config.layers):
            if len(stack_config.tied_layers(number)) > 1:
                raise HeadjaxError(f"{stack}/{number}: shares its parameters with other layers; none shrinks alone")
            for slot in layer.slots:
                fields = {"units": layer.hidden} if slot == FEED_FORWARD else {"attention": getattr(layer, slot)}
                sub_layers.append(SubLayer(stack, number, slot, **fields))
    return sub_layers


def head_groups(attention: Kind) -> list[tuple[int, ...]]:
    """Return the positions of the heads that go together: those that read one KV head."""
    groups: dict[int, list[int]] = {}
    for position, group in enumerate(attention.groups):
        groups.setdefault(group, []).append(position)
    return [tuple(group) for group in groups.values()]


def heads_left(count: int, share: float) -> int:
    """Return the number of heads (or groups of them) that a share leaves; one at least unless the share is 0."""
    return 0 if share == 0.0 else min(max(round(share * count), 1), count)


def target_of(size: SubLayerSize, attention: Kind, width: int) -> Target | None:
    """Return the conversion of a size for a layer with the heads that are left.

    None where the layer cannot have it, or where its sizes are no smaller than the layer's.
    """
    head_dim = getattr(attention, "head_dim", 0)
    value_dim = getattr(attention, "values", head_dim)
    heads, groups = attention.num_heads, len(set(attention.groups))
    even = max(2 * round(size.size * head_dim / 2), 2)
    if size.to == "grouped":
        left = heads_left(groups, size.size)
        text, smaller = f"kv_heads={left}", left < groups
    elif size.to == "latent":
        # Beside a latent, keys that turn keep their position: with it, the cache is no more than the share.
        rank = max(round(size.size * groups * (head_dim + value_dim)) - is_rotary(attention), 1)
        text, smaller = f"rank={min(rank, width)}", rank < groups * (head_dim + value_dim)
    elif size.to == "fixed":
        text, smaller = f"head_dim={even},value_dim={value_dim}", even < head_dim and groups == heads
    else:
        shared = max(2 * round(size.size * groups * head_dim / 2), 2)
        text, smaller = f"shared_dim={shared}", shared < groups * head_dim
    target = parse_target(f"{size.to}:{text}") if smaller else None
    if not isinstance(target, Target):
        return None
    try:
        target.check(attention, width, width)
    except ConfigError:
        return None
    return target
