"""Where activations lie: their examples over the mesh's batch axes, as the batch's do."""

from __future__ import annotations

import jax
from jax.sharding import PartitionSpec

from headjax.parallel.mesh import BATCH_AXES


def by_example(x: jax.Array) -> jax.Array:
    """The array `[batch, ...]` with its examples spread over the batch axes of the current mesh, whole otherwise.

    The compiler would else be free to spread activations as the parameters are, with every example on every device
    of the `fsdp` axis. Without a mesh, or where the examples do not divide, the array stays as it is.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1 or mesh.manual_axes or any(axis not in mesh.shape for axis in BATCH_AXES):
        return x
    parts = mesh.shape[BATCH_AXES[0]] * mesh.shape[BATCH_AXES[1]]
    if x.shape[0] % parts:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(BATCH_AXES))
