"""Where activations lie: their examples over the mesh's batch axes, as the batch's do."""

from __future__ import annotations

from typing import TypeVar

import jax
from jax.sharding import PartitionSpec

from headjax.parallel.mesh import BATCH_AXES

Activations = TypeVar("Activations")


def by_example(x: Activations) -> Activations:
    """The arrays `[batch, ...]` of a tree with their examples spread over the batch axes of the current mesh.

    The compiler would else be free to spread activations as the parameters are, with every example on every device
    of the `fsdp` axis. Without a mesh, or where the examples do not divide, an array stays as it is; scalars do too.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1 or mesh.manual_axes or any(axis not in mesh.shape for axis in BATCH_AXES):
        return x
    parts = mesh.shape[BATCH_AXES[0]] * mesh.shape[BATCH_AXES[1]]

    def spread(array: jax.Array) -> jax.Array:
        if array.ndim == 0 or array.shape[0] % parts:
            return array
        return jax.lax.with_sharding_constraint(array, PartitionSpec(BATCH_AXES))

    return jax.tree.map(spread, x)
