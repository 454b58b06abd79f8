"""The rules table: golden placements, and rules that do not fit."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from headjax.attention import MultiHead
from headjax.core.errors import ConfigError
from headjax.core.tensors import flatten, weight
from headjax.mesh.mesh import MeshConfig
from headjax.mesh.rules import ShardingConfig, moment_shardings, moment_spec, partition_spec, shardings


def specs(tensors, mesh):
    return {path: tuple(sharding.spec) for path, sharding in flatten(shardings(tensors, mesh)).items()}


def test_axes_of_size_one_shard_nothing():
    mesh = MeshConfig(data=8).build()
    assert set(specs(MultiHead(num_heads=3, head_dim=5).tensors(7, 7), mesh).values()) == {()}


def test_an_axis_that_the_mesh_lacks_replicates():
    mesh = Mesh(np.array(jax.devices()), ("data",))
    tensors = MultiHead(num_heads=2, head_dim=3).tensors(4, 4)
    assert set(specs(tensors, mesh).values()) == {()}
    own = {"embed": "data", "heads": "tensor"}
    assert partition_spec("p", weight((8, 2, 3), ("embed", "heads", "head_dim")), mesh, own) == PartitionSpec("data")
    assert set(flatten(moment_shardings(tensors, mesh, ShardingConfig(optimizer="data")))) == set(flatten(tensors))


MISFITS = [((4, 3), ("embed", "heads")), ((4, 4), ("heads", "feed_forward"))]
"""An axis of 2 devices over 3 heads, and one that two dimensions ask for."""


def test_rules_that_do_not_fit_name_the_tensor_or_leave_a_dimension_whole_on_request():
    mesh, replicating = MeshConfig(data=2, fsdp=2, model=2).build(), ShardingConfig(misfits="replicate")
    for shape, axes in [*MISFITS, ((4,), ("colour",))]:
        with pytest.raises(ConfigError, match=r"^a/b: "):
            partition_spec("a/b", weight(shape, axes), mesh)
    placed = [partition_spec("p", weight(shape, axes), mesh, sharding=replicating) for shape, axes in MISFITS]
    assert placed == [PartitionSpec("fsdp"), PartitionSpec("model")]
    with pytest.raises(ConfigError, match=r"^a/b: "):
        partition_spec("a/b", weight((4,), ("colour",)), mesh, sharding=replicating)
    assert partition_spec("p", weight((5, 4), (None, "embed")), mesh) == PartitionSpec(None, "fsdp")


def test_moments_take_the_data_axis_where_the_largest_whole_dimension_divides():
    mesh = MeshConfig(data=4, model=2).build()
    cases = [((3, 8, 12), PartitionSpec()), ((8, 12), PartitionSpec(None, "model")), ((3,), PartitionSpec())]
    placed = [moment_spec(weight(shape, (None,) * len(shape)), spec, mesh) for shape, spec in cases]
    assert placed == [PartitionSpec(None, None, "data"), PartitionSpec("data", "model"), PartitionSpec()]
