"""Meshes: what fills the devices and divides over them; rules of placement, and those that do not fit."""

import itertools

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

import headjax
from headjax.mesh.mesh import check_batch_size
from headjax.mesh.rules import ShardingConfig, moment_shardings, moment_spec, partition_spec, shardings
from tests import tiny
from tests.tiny import flatten


def test_one_axis_takes_the_remaining_devices():
    assert dict(headjax.MeshConfig(data=-1, model=2).build().shape) == {"slices": 1, "data": 4, "fsdp": 1, "model": 2}
    assert dict(headjax.MeshConfig(data=2, fsdp=-1, model=2).build().shape) == {
        "slices": 1,
        "data": 2,
        "fsdp": 2,
        "model": 2,
    }
    two = headjax.MeshConfig(slices=2, fsdp=-1, data=2).build()
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
    rows = coordinates(headjax.MeshConfig(model=8).build(chips))
    assert sorted(rows) == rows
    for row in rows:
        steps = [abs(x - a) + abs(y - b) for (x, y), (a, b) in itertools.pairwise(row)]
        assert steps == [1] * 7
    assert [chip.coords[:2] for chip in chips[:4]] == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_chips_that_form_no_box_are_taken_as_they_are_listed():
    chips = [chip for chip in (Chip(place, 4) for place in range(16)) if chip.coords[:2] != (3, 3)][:14]
    assert headjax.MeshConfig(model=2).build(chips).devices.ravel().tolist() == chips


def test_slices_are_those_that_the_devices_state():
    chips = [Chip(place, 4, slice_index=index) for index in (1, 0) for place in range(16)]
    for slices in (-1, 2):
        mesh = headjax.MeshConfig(slices=slices, model=4).build(chips)
        assert dict(mesh.shape) == {"slices": 2, "data": 4, "fsdp": 1, "model": 4}
        assert [{chip.slice_index for chip in part.ravel()} for part in mesh.devices] == [{0}, {1}]
    assert headjax.MeshConfig().build(chips[:16]).shape["slices"] == 1
    for slices, given in ((1, chips), (2, chips[:16]), (-1, chips[:20])):
        with pytest.raises(headjax.ConfigError, match=r"^mesh\.slices: "):
            headjax.MeshConfig(slices=slices).build(given)


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
    with pytest.raises(headjax.ConfigError, match=f"^{field}: "):
        headjax.MeshConfig(**sizes).build()


@pytest.mark.parametrize(
    "sizes, field",
    [({"data": 0}, "data"), ({"fsdp": -2}, "fsdp"), ({"data": -1, "model": -1}, "data"), ({"slices": 0}, "slices")],
)
def test_impossible_axis_sizes_name_the_field(sizes, field):
    with pytest.raises(headjax.ConfigError, match=f"^{field}: "):
        headjax.MeshConfig(**sizes)


def test_a_batch_must_divide_over_the_batch_axes():
    mesh = headjax.MeshConfig(data=2, fsdp=2, model=2).build()
    check_batch_size(8, mesh)
    for size, over, parts in ((6, mesh, 1), (8, mesh, 4), (6, headjax.MeshConfig(slices=2, fsdp=2).build(), 1)):
        with pytest.raises(headjax.ConfigError, match=r"^batch_size: "):
            check_batch_size(size, over, parts)
    check_batch_size(3, headjax.MeshConfig().build(jax.devices()[:1]))


def specs(tensors, mesh):
    return {path: tuple(sharding.spec) for path, sharding in flatten(shardings(tensors, mesh)).items()}


def test_an_axis_that_the_mesh_lacks_replicates():
    mesh = Mesh(np.array(jax.devices()), ("data",))
    tensors = tiny.weights(tiny.multi_head(2, 3), 4, 4)
    assert set(specs(tensors, mesh).values()) == {()}
    assert set(flatten(moment_shardings(tensors, mesh, ShardingConfig(optimizer="data")))) == set(flatten(tensors))


MISFITS = [((4, 3), ("embed", "heads")), ((4, 4), ("heads", "feed_forward"))]
"""An axis of 2 devices over 3 heads, and one that two dimensions ask for."""


def test_rules_that_do_not_fit_name_the_tensor_or_leave_a_dimension_whole_on_request():
    mesh, replicating = headjax.MeshConfig(data=2, fsdp=2, model=2).build(), ShardingConfig(misfits="replicate")
    for shape, axes in [*MISFITS, ((4,), ("colour",))]:
        with pytest.raises(headjax.ConfigError, match=r"^a/b: "):
            partition_spec("a/b", headjax.nn.weight(shape, axes), mesh)
    placed = [
        partition_spec("p", headjax.nn.weight(shape, axes), mesh, sharding=replicating) for shape, axes in MISFITS
    ]
    assert placed == [PartitionSpec("fsdp"), PartitionSpec("model")]
    with pytest.raises(headjax.ConfigError, match=r"^a/b: "):
        partition_spec("a/b", headjax.nn.weight((4,), ("colour",)), mesh, sharding=replicating)
    assert partition_spec("p", headjax.nn.weight((5, 4), (None, "embed")), mesh) == PartitionSpec(None, "fsdp")


def test_moments_take_the_data_axis_where_the_largest_whole_dimension_divides():
    mesh = headjax.MeshConfig(data=4, model=2).build()
    cases = [((3, 8, 12), PartitionSpec()), ((8, 12), PartitionSpec(None, "model")), ((3,), PartitionSpec())]
    placed = [moment_spec(headjax.nn.weight(shape, (None,) * len(shape)), spec, mesh) for shape, spec in cases]
    assert placed == [PartitionSpec(None, None, "data"), PartitionSpec("data", "model"), PartitionSpec()]
