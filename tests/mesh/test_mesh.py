"""Meshes: what fills the devices, what does not, and what divides over them."""

import itertools

import jax
import pytest
from jax.sharding import AxisType

from headjax.core.errors import ConfigError
from headjax.mesh.mesh import MeshConfig, check_batch_size


def test_one_axis_takes_the_remaining_devices():
    assert dict(MeshConfig(data=-1, model=2).build().shape) == {"slices": 1, "data": 4, "fsdp": 1, "model": 2}
    assert dict(MeshConfig(data=2, fsdp=-1, model=2).build().shape) == {"slices": 1, "data": 2, "fsdp": 2, "model": 2}
    two = MeshConfig(slices=2, fsdp=-1, data=2).build()
    assert dict(two.shape) == {"slices": 2, "data": 2, "fsdp": 2, "model": 1}
    assert two.axis_types == (AxisType.Auto,) * 4


class Chip:
    """A device of a v5e slice: two rows of two chips for each host."""

    platform, device_kind, core_on_chip = "tpu", "TPU v5 lite", 0

    def __init__(self, place, width, **known):
        host, (row, column) = place // 4, divmod(place % 4, 2)
        hosts = width // 2
        self.coords = (host % hosts * 2 + column, host // hosts * 2 + row, 0)
        self.process_index = host
        for name, value in known.items():
            setattr(self, name, value)


def coordinates(mesh):
    return [[chip.coords[:2] for chip in row] for row in mesh.devices.reshape(-1, mesh.shape["model"])]


def test_an_axis_lies_along_the_network():
    """A row of chips each for the axis `model`, where their list goes from host to host."""
    chips = [Chip(place, 8) for place in range(64)]
    rows = coordinates(MeshConfig(model=8).build(chips))
    assert sorted(rows) == rows
    for row in rows:
        steps = [abs(x - a) + abs(y - b) for (x, y), (a, b) in itertools.pairwise(row)]
        assert steps == [1] * 7
    assert [chip.coords[:2] for chip in chips[:4]] == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_chips_that_form_no_box_are_taken_as_they_are_listed():
    chips = [chip for chip in (Chip(place, 4) for place in range(16)) if chip.coords[:2] != (3, 3)][:14]
    assert MeshConfig(model=2).build(chips).devices.ravel().tolist() == chips


def test_slices_are_those_that_the_devices_state():
    chips = [Chip(place, 4, slice_index=index) for index in (1, 0) for place in range(16)]
    for slices in (-1, 2):
        mesh = MeshConfig(slices=slices, model=4).build(chips)
        assert dict(mesh.shape) == {"slices": 2, "data": 4, "fsdp": 1, "model": 4}
        assert [{chip.slice_index for chip in part.ravel()} for part in mesh.devices] == [{0}, {1}]
    assert MeshConfig().build(chips[:16]).shape["slices"] == 1
    for slices, given in ((1, chips), (2, chips[:16]), (-1, chips[:20])):
        with pytest.raises(ConfigError, match=r"^mesh\.slices: "):
            MeshConfig(slices=slices).build(given)


@pytest.mark.parametrize(
    ("sizes", "field"),
    [
        ({"data": 3}, "mesh"),
        ({"fsdp": 3}, "mesh"),
        ({"data": 1, "fsdp": 8, "slices": 2}, "mesh"),
        ({"slices": 3}, r"mesh\.slices"),
    ],
)
def test_a_mesh_that_does_not_fill_the_devices_is_refused(sizes, field):
    with pytest.raises(ConfigError, match=f"^{field}: "):
        MeshConfig(**sizes).build()


@pytest.mark.parametrize(
    "sizes, field",
    [({"data": 0}, "data"), ({"fsdp": -2}, "fsdp"), ({"data": -1, "model": -1}, "data"), ({"slices": 0}, "slices")],
)
def test_impossible_axis_sizes_name_the_field(sizes, field):
    with pytest.raises(ConfigError, match=f"^{field}: "):
        MeshConfig(**sizes)


def test_a_batch_must_divide_over_the_batch_axes():
    mesh = MeshConfig(data=2, fsdp=2, model=2).build()
    check_batch_size(8, mesh)
    for size, over, parts in ((6, mesh, 1), (8, mesh, 4), (6, MeshConfig(slices=2, fsdp=2).build(), 1)):
        with pytest.raises(ConfigError, match=r"^batch_size: "):
            check_batch_size(size, over, parts)
    check_batch_size(3, MeshConfig().build(jax.devices()[:1]))
