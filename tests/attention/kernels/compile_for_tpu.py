"""Compiles kernels for a TPU v5e on a machine without one, and prints what came out as JSON. Run by test_compile.py."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from headjax.attention import Mask, attend
from headjax.attention.kernels import target
from headjax.parallel.mesh import MeshConfig

DEVICES = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices


def spec(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    """An array on the TPU, by shape and type."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=SingleDeviceSharding(DEVICES[0]))


def compiled(implementation: str, arrays: tuple[Any, ...], present: Any) -> dict[str, Any]:
    """Temporary bytes and names of the kernels in a compiled forward and backward pass.

    `arrays` are query, key and value, and for collaborative attention also mixing and bias.
    """

    def loss(arrays: tuple[Any, ...], present: Any) -> Any:
        query, key, value, *rest = arrays
        mixing, bias = rest or (None, None)
        mask = Mask(causal=True, keys=present)
        attended = attend(
            query, key, value, scale=0.1, mask=mask, mixing=mixing, bias=bias, implementation=implementation
        )
        return jnp.sum(jnp.square(attended.context.astype(jnp.float32)))

    with target("tpu"):
        executable = jax.jit(jax.grad(loss)).trace(arrays, present).lower().compile()
    text = executable.as_text()
    names = ("collaborative_forward", "collaborative_backward_queries", "collaborative_backward_keys", "splash")
    return {
        "temporary_bytes": executable.memory_analysis().temp_size_in_bytes,
        "kernels": [name for name in names if name in text],
    }


def spread() -> dict[str, Any]:
    """The same for four TPUs, the batch over two and the heads over two."""
    mesh = MeshConfig(data=2, model=2).build(DEVICES)
    everywhere = NamedSharding(mesh, PartitionSpec("data"))

    def place(array: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        of_batch = array.shape[0] == 2
        sharding = everywhere if of_batch else NamedSharding(mesh, PartitionSpec())
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)

    with jax.set_mesh(mesh):
        return compiled("collaborative_pallas", *jax.tree.map(place, collaborative(200, 12, "bfloat16")))


def multi_head(length: int, qk_dim: int, value_dim: int, dtype: str) -> tuple[tuple[Any, ...], Any]:
    """Query, key and value of four heads; presence of keys."""
    sizes = (qk_dim, qk_dim, value_dim)
    return tuple(spec(2, length, 4, size, dtype=dtype) for size in sizes), spec(2, length, dtype="bool")


def collaborative(length: int, heads: int, dtype: str) -> tuple[tuple[Any, ...], Any]:
    """Shared query and key of 384, values of 64, mixing and content bias; presence of keys."""
    shared = spec(2, length, 1, 384, dtype=dtype)
    value, mixing = spec(2, length, heads, 64, dtype=dtype), spec(heads, 384, dtype=dtype)
    return (shared, shared, value, mixing, spec(2, heads, 1, length)), spec(2, length, dtype="bool")


if __name__ == "__main__":
    results = {
        "splash float32": compiled("splash", *multi_head(256, 64, 64, "float32")),
        "splash bfloat16": compiled("splash", *multi_head(384, 96, 32, "bfloat16")),
        "ours float32": compiled("collaborative_pallas", *collaborative(200, 12, "float32")),
        "ours bfloat16": compiled("collaborative_pallas", *collaborative(200, 12, "bfloat16")),
        "ours spread": spread(),
        "ours long": compiled("collaborative_pallas", *collaborative(2048, 12, "bfloat16")),
        "einsum long": compiled("einsum", *collaborative(2048, 12, "bfloat16")),
    }
    print(json.dumps(results))
