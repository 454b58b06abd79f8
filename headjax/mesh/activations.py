"""Where activations lie: their examples over the mesh's batch axes, as the batch's do."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from headjax.mesh.mesh import BATCH_AXES, batch_parts, spreading_mesh

Activations = TypeVar("Activations")


def by_example(x: Activations) -> Activations:
    """The arrays `[batch, ...]` of a tree with their examples spread over the batch axes of the current mesh.

    The compiler would else be free to spread activations as the parameters are, with every example on every device
    of the `fsdp` axis. Without a mesh, or where the examples do not divide, an array stays as it is; scalars do too.
    """
    mesh = spreading_mesh()
    if mesh is None:
        return x
    parts = batch_parts(mesh)

    def spread(array: jax.Array) -> jax.Array:
        if array.ndim == 0 or array.shape[0] % parts:
            return array
        return jax.lax.with_sharding_constraint(array, PartitionSpec(BATCH_AXES))

    return jax.tree.map(spread, x)


def look_up(table: jax.Array, rows: jax.Array) -> jax.Array:
    """The rows of a table `[rows, width]` for numbers `[batch, length]`, as `[batch, length, width]`, by example.

    Where the table's columns are spread over the mesh axis `fsdp`, each device looks up its columns for the examples
    of all devices along that axis, and these then exchange them: far less than to gather the table. Both steps are
    said here, since from one to the other at once the compiler only knows the way over whole arrays on every device.
    """
    x = jnp.take(table, rows, axis=0)
    mesh = spreading_mesh()
    if mesh is None or mesh.shape["fsdp"] == 1:
        return by_example(x)
    data, fsdp = (mesh.shape[axis] for axis in BATCH_AXES)
    if x.shape[0] % (data * fsdp) or x.shape[-1] % fsdp:
        return by_example(x)
    return by_example(jax.lax.with_sharding_constraint(x, PartitionSpec("data", None, "fsdp")))
