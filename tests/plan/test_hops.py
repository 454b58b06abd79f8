"""Hops: those of rings that are easily counted, and those of a mesh in both orders."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from headjax.mesh.mesh import AXES, MeshConfig
from headjax.plan.hops import Hops, axis_hops, ring_hops

LINE = [(x, 0) for x in range(4)]


@pytest.mark.parametrize(
    "rings, shape, wraps, expected",
    [
        # Along a line the last one's message passes all links once more, in the other direction.
        ([LINE], (4, 1), (False, False), Hops(6 / 4, 3, 1)),
        ([LINE], (4, 1), (True, False), Hops(1.0, 1, 1)),
        ([[(0, 0), (1, 0), (1, 1), (0, 1)]], (2, 2), (False, False), Hops(1.0, 1, 1)),
        ([[(0, 0), (0, 0)]], (2, 2), (False, False), Hops(0.0, 0, 0)),  # two cores of a chip
        # Two rings on one line share its middle link in both directions.
        ([[(0, 0), (2, 0)], [(1, 0), (3, 0)]], (4, 1), (False, False), Hops(2.0, 2, 2)),
        ([[(0, 0, 3), (0, 0, 0)]], (4, 4, 4), (True, True, True), Hops(1.0, 1, 1)),
        ([[(3, 1), (0, 0)]], (4, 4), (True, True), Hops(2.0, 2, 1)),
    ],
)
def test_links_are_counted_one_dimension_after_the_other(rings, shape, wraps, expected):
    assert ring_hops(rings, shape, wraps) == expected


class Chip:
    def __init__(self, *coords):
        self.coords = coords


def test_an_axis_is_counted_in_the_meshs_order_and_in_the_listed_one():
    listed = [Chip(x, y, 0) for x, y in [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1)]]
    rows = sorted(listed, key=lambda chip: chip.coords[1])
    mesh = Mesh(np.asarray(rows).reshape(1, 2, 1, 4), AXES)
    found = axis_hops(mesh, listed, (4, 2), (False, False))
    assert found.keys() == {"data", "model"}
    assert found["data"].arranged == Hops(1.0, 1, 1)
    assert found["data"].listed == Hops(2.0, 2, 2)
    assert found["model"].arranged == Hops(1.5, 3, 1)
    assert found["model"].listed == Hops(1.5, 2, 1)


def test_simulated_devices_have_no_place():
    assert axis_hops(MeshConfig(model=2).build(), jax.devices(), (8,), (False,)) == {}
