"""Links between the devices that a mesh axis joins, counted from their coordinates in a slice's network."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

Coordinates = tuple[int, ...]


class Hops(NamedTuple):
    """Links on the way from each device of an axis to the next one, and from the last to the first.

    Attributes:
        mean: links on such a way, on average over the mesh; none between two cores of a chip.
        longest: links on the longest of these ways.
        busiest: messages that one link carries in one direction while every device sends one to its next; 1 is the
            least where chips send at all.
    """

    mean: float
    longest: int
    busiest: int


class AxisHops(NamedTuple):
    """Hops of a mesh axis.

    Attributes:
        arranged: in the mesh's order of devices.
        listed: in the order in which JAX lists the devices.
    """

    arranged: Hops
    listed: Hops


def axis_hops(
    mesh: Mesh, listed: Sequence[jax.Device], shape: Coordinates, wraps: Sequence[bool]
) -> dict[str, AxisHops]:
    """Return the hops of every axis within a slice that has more than one device; none where devices have no place.

    Args:
        mesh: devices of one slice, or of several equal ones along its first axis.
        listed: the same devices as JAX lists them.
        shape: chips along each dimension of a slice's network.
        wraps: whether the ends of each dimension are neighbours.
    """
    if not hasattr(listed[0], "coords"):
        return {}
    orders = [mesh.devices, np.asarray(listed).reshape(mesh.devices.shape)]
    return {
        name: AxisHops(*(ring_hops(_coordinates(order[0], axis), shape, wraps) for order in orders))
        for axis, name in enumerate(mesh.axis_names[1:])
        if mesh.shape[name] > 1
    }


def ring_hops(rings: Sequence[Sequence[Coordinates]], shape: Coordinates, wraps: Sequence[bool]) -> Hops:
    """Return the hops of rings of chips that all send at once, each message along one dimension after the other.

    Args:
        rings: coordinates of each ring's chips, in its order.
        shape: chips along each dimension.
        wraps: whether the ends of each dimension are neighbours.
    """
    loads: collections.Counter[tuple[Coordinates, Coordinates]] = collections.Counter()
    lengths = []
    for ring in rings:
        for start, end in itertools.pairwise([*ring, ring[0]]):
            links = list(_way(start, end, shape, wraps))
            lengths.append(len(links))
            loads.update(links)
    return Hops(sum(lengths) / len(lengths), max(lengths), max(loads.values(), default=0))


def _coordinates(devices: np.ndarray, axis: int) -> list[list[Coordinates]]:
    """Return the coordinates of the rings that an axis of an array of devices consists of."""
    rings = np.moveaxis(devices, axis, -1).reshape(-1, devices.shape[axis])
    return [[tuple(device.coords) for device in ring] for ring in rings]


def _way(
    start: Coordinates, end: Coordinates, shape: Coordinates, wraps: Sequence[bool]
) -> Iterator[tuple[Coordinates, Coordinates]]:
    """Yield the links from one chip to another, the shorter way round where a dimension's ends are neighbours."""
    here: Any = list(start)
    for dimension, size in enumerate(shape):
        ahead = (end[dimension] - here[dimension]) % size if wraps[dimension] else end[dimension] - here[dimension]
        back = wraps[dimension] and ahead > size - ahead
        step = -1 if back or ahead < 0 else 1
        for _ in range(size - ahead if back else abs(ahead)):
            before = tuple(here)
            here[dimension] = (here[dimension] + step) % size
            yield before, tuple(here)
