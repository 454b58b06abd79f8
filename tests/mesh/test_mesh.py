"""Meshes: what fills the devices, what does not, and what divides over them."""

import jax
import pytest

from headjax.core.errors import ConfigError
from headjax.mesh.mesh import MeshConfig, check_batch_size


def test_one_axis_takes_the_remaining_devices():
    assert dict(MeshConfig(data=-1, model=2).build().shape) == {"data": 4, "fsdp": 1, "model": 2}
    assert dict(MeshConfig(data=2, fsdp=-1, model=2).build().shape) == {"data": 2, "fsdp": 2, "model": 2}


def test_a_mesh_that_does_not_fill_the_devices_is_refused():
    with pytest.raises(ConfigError, match=r"^mesh: data=3, fsdp=1, model=1 does not fill 8 devices$"):
        MeshConfig(data=3).build()
    with pytest.raises(ConfigError, match=r"^mesh: data=-1, fsdp=3, model=1 does not fill 8 devices$"):
        MeshConfig(fsdp=3).build()


@pytest.mark.parametrize(
    "sizes, field", [({"data": 0}, "data"), ({"fsdp": -2}, "fsdp"), ({"data": -1, "model": -1}, "data")]
)
def test_impossible_axis_sizes_name_the_field(sizes, field):
    with pytest.raises(ConfigError, match=f"^{field}: "):
        MeshConfig(**sizes)


def test_a_batch_must_divide_over_the_batch_axes():
    mesh = MeshConfig(data=2, fsdp=2, model=2).build()
    check_batch_size(8, mesh)
    with pytest.raises(ConfigError, match=r"^batch_size: 6 does not divide over 4 devices"):
        check_batch_size(6, mesh)
    with pytest.raises(ConfigError, match=r"^batch_size: 8 does not divide over 4 devices \(data x fsdp\) in 4 parts"):
        check_batch_size(8, mesh, 4)
    check_batch_size(3, MeshConfig().build(jax.devices()[:1]))
