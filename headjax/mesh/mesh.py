"""The device mesh: axes `data`, `fsdp` and `model`, and the placement of batches and activations on it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headjax.core.errors import ConfigError, require
from headjax.core.fields import Checked

AXES = ("data", "fsdp", "model")
BATCH_AXES = ("data", "fsdp")
"""Mesh axes over which the examples of a batch are spread."""

MODEL_AXIS = "model"
"""Mesh axis over which heads, feed-forward and vocabulary are spread."""

Activations = TypeVar("Activations")


@dataclasses.dataclass(frozen=True)
class MeshConfig(Checked):
    """Sizes of the mesh axes; one of them may be -1 and takes the devices that remain.

    Attributes:
        data: copies of the model that each see a part of the batch.
        fsdp: devices over which each copy's parameters are also spread, gathered where used; they split the batch too.
        model: devices that split heads, feed-forward and vocabulary.
    """

    data: int = -1
    fsdp: int = 1
    model: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = (self.data, self.fsdp, self.model)
        require(sum(size == -1 for size in sizes) <= 1, "data", "only one of data, fsdp and model may be -1")
        for name, size in zip(AXES, sizes, strict=True):
            require(size == -1 or size >= 1, name, f"must be -1 or at least 1, got {size}")

    def build(self, devices: Sequence[jax.Device] | None = None) -> Mesh:
        """Return the mesh over these devices, by default over all.

        Raises:
            ConfigError: the sizes do not multiply to the number of devices.
        """
        devices = jax.devices() if devices is None else devices
        sizes = [self.data, self.fsdp, self.model]
        fixed = math.prod(size for size in sizes if size != -1)
        if -1 in sizes and len(devices) % fixed == 0:
            sizes[sizes.index(-1)] = len(devices) // fixed
        if math.prod(sizes) != len(devices):
            named = ", ".join(f"{name}={size}" for name, size in zip(AXES, sizes, strict=True))
            raise ConfigError(f"mesh: {named} does not fill {len(devices)} devices")
        return Mesh(np.asarray(devices).reshape(sizes), AXES)


def current_mesh() -> Any | None:
    """Return the mesh set with `jax.set_mesh`; None without one, on one device, and within `jax.shard_map`."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1 or mesh.manual_axes:
        return None
    return mesh


def spreading_mesh() -> Any | None:
    """Return the current mesh if it has the batch axes; None where there is no mesh to spread examples over."""
    mesh = current_mesh()
    return None if mesh is None or any(axis not in mesh.shape for axis in BATCH_AXES) else mesh


def batch_parts(mesh: Any) -> int:
    """Return the number of parts that a mesh splits a batch into."""
    return parts_along(mesh, BATCH_AXES)


def parts_along(mesh: Any, axes: Sequence[str]) -> int:
    """Return the number of parts that these axes split a dimension into; an axis that the mesh lacks counts as 1."""
    return math.prod(mesh.shape.get(axis, 1) for axis in axes)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of examples along the first dimension, spread over all batch axes."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding of a value that every device has whole."""
    return NamedSharding(mesh, PartitionSpec())


def check_batch_size(batch_size: int, mesh: Mesh, accumulate: int = 1) -> None:
    """Raise `ConfigError` unless a batch in `accumulate` parts divides evenly over the mesh's batch axes."""
    parts = batch_parts(mesh)
    over = f"{parts} devices (data x fsdp)" + (f" in {accumulate} parts (accumulate)" if accumulate > 1 else "")
    require(batch_size % (parts * accumulate) == 0, "batch_size", f"{batch_size} does not divide over {over}")


def by_example(x: Activations) -> Activations:
    """Return the arrays `[batch, ...]` of a tree with their examples spread over the batch axes of the current mesh.

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
    """Return rows of a table `[rows, width]` for numbers `[batch, length]`, as `[batch, length, width]`, by example.

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
