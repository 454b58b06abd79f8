"""Kernels that XLA cannot partition are spread over the current mesh, with the same results and gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from headjax.attention import Mask, attend
from headjax.attention.kernels.choose import tpu_generation
from headjax.mesh.mesh import MeshConfig, current_mesh
from tests.attention.kernels.calls import SUMS, normal
from tests.closeness import assert_close

BATCH, LENGTH, SHARED, VALUES = 2, 5, 8, 4


def loss(arrays, mask, implementation):
    query, key, value, mixing, bias = arrays
    attended = attend(query, key, value, scale=0.3, mask=mask, bias=bias, mixing=mixing, implementation=implementation)
    return jnp.sum(jnp.sin(attended.context)), attended.context


@pytest.mark.parametrize("heads", [4, 3], ids=["heads that divide", "heads that do not"])
def test_results_and_gradients_are_those_of_one_device(heads):
    arrays = (
        normal(BATCH, LENGTH, 1, SHARED, seed=0),
        normal(BATCH, LENGTH, 1, SHARED, seed=1),
        normal(BATCH, LENGTH, heads, VALUES, seed=2),
        normal(heads, SHARED, seed=3),
        normal(1, heads, 1, LENGTH, seed=4),
    )
    mask = Mask(causal=True, keys=jnp.asarray([[True] * 5, [True] * 3 + [False] * 2]))
    step = jax.jit(jax.grad(loss, has_aux=True), static_argnums=2)
    expected = step(arrays, mask, "einsum")
    with jax.set_mesh(MeshConfig(data=2, fsdp=1, model=2).build(jax.devices()[:4])):
        actual = step(arrays, mask, "collaborative_pallas")
    for one, several in zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True):
        assert_close(several, one, sums=2 * SUMS)
    spread = actual[1].sharding.shard_shape(actual[1].shape)
    assert spread == (BATCH // 2, LENGTH, 2 if heads == 4 else heads, VALUES)


def test_there_is_no_mesh_to_spread_over_where_devices_are_on_their_own():
    assert current_mesh() is None
    with jax.set_mesh(MeshConfig(data=1, model=2).build(jax.devices()[:2])):
        assert current_mesh() is not None

        @jax.shard_map(in_specs=jax.P("model"), out_specs=jax.P("model"))
        def alone(x):
            assert current_mesh() is None
            return x

        alone(jnp.arange(2.0))
    with jax.set_mesh(MeshConfig(data=1).build(jax.devices()[:1])):
        assert current_mesh() is None


@pytest.mark.parametrize(
    "kind, generation", [("TPU v3", 3), ("TPU v5 lite", 5), ("TPU v6e", 6), ("TPU7x", 7), ("cpu", None), ("H100", None)]
)
def test_generations_are_read_off_device_names(kind, generation):
    assert tpu_generation(kind) == generation
