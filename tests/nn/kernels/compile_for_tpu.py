"""Compiles kernels for TPUs on a machine without one, and prints what came out as JSON. Run by test_compile.py."""

import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from headjax.core.errors import KernelError
from headjax.core.kind import Kind
from headjax.core.tensors import abstract, map_tensors
from headjax.mesh.mesh import MeshConfig
from headjax.models import Compute, ForwardOptions, Model
from headjax.nn import CollaborativeAttention, Mask, attend
from headjax.nn.attend import target
from tests import tiny
from tests.nn.formulations import FORMULATIONS

WITHOUT_BIAS = {
    "collaborative_without_bias": Kind(CollaborativeAttention, num_heads=4, shared_dim=8, value_dim=4, head_dim=4)
}
"""Splash adds no bias to the logits."""

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


def computed(config: Any, compute: Compute, params: Any, batch: Any) -> Any:
    return Model(config, params).forward(batch, ForwardOptions(compute=compute)).logits


def every_formulation(topology: str, generation: int) -> dict[str, Any]:
    """Splash in the forward and backward pass of a decoder with a layer of every formulation that can take it."""
    device = SingleDeviceSharding(topologies.get_topology_desc(platform="tpu", topology_name=topology).devices[0])
    compute = Compute(dtype="bfloat16", attention="splash")
    with target("tpu", 1, generation):
        refused, layers = [], []
        for name, attention in (FORMULATIONS | WITHOUT_BIAS).items():
            try:
                alone = tiny.decoder_config(tiny.layer(attention), max_length=128)
                shapes = abstract(alone.tensors()), alone.example_batch(2, 128)
                jax.eval_shape(functools.partial(computed, alone, compute), *shapes)
                layers.append(tiny.layer(attention))
            except KernelError:
                refused.append(name)
        config = tiny.decoder_config(*layers, max_length=128)
        params = map_tensors(
            lambda _, tensor: jax.ShapeDtypeStruct(tensor.shape, jnp.float32, sharding=device), config.tensors()
        )
        batch = {"input_ids": jax.ShapeDtypeStruct((2, 128), jnp.int32, sharding=device)}

        def loss(params: Any, batch: Any) -> Any:
            model = Model(config, params)
            return model.losses(model.forward(batch, ForwardOptions(compute=compute)), batch).mean()

        text = jax.jit(jax.grad(loss)).trace(params, batch).lower().compile().as_text()
    calls = [line for line in text.splitlines() if "custom-call(" in line and "splash" in line]
    return {"refused": refused, "layers": len(layers), "calls": len(calls)}


if __name__ == "__main__":
    results = {
        "every formulation v5e": every_formulation("v5e:2x2", 5),
        "every formulation v6e": every_formulation("v6e:2x2", 6),
        "splash float32": compiled("splash", *multi_head(256, 64, 64, "float32")),
        "splash bfloat16": compiled("splash", *multi_head(384, 96, 32, "bfloat16")),
        "ours float32": compiled("collaborative_pallas", *collaborative(200, 12, "float32")),
        "ours bfloat16": compiled("collaborative_pallas", *collaborative(200, 12, "bfloat16")),
        "ours spread": spread(),
        "ours long": compiled("collaborative_pallas", *collaborative(2048, 12, "bfloat16")),
        "einsum long": compiled("einsum", *collaborative(2048, 12, "bfloat16")),
    }
    print(json.dumps(results))
