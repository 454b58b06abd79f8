"""One table from logical axes to mesh axes; every array's sharding follows from it and the tensor's declaration."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headjax.core.errors import ConfigError
from headjax.core.fields import Checked
from headjax.core.tensors import RULES, Tensors, map_tensors


@dataclasses.dataclass(frozen=True)
class ShardingConfig(Checked):
    """Departures of a run from the table.

    Attributes:
        misfits: treatment of a dimension that does not divide over its mesh axis, or whose axis another dimension
            of the tensor has: an `error`, or it is left whole (`replicate`).
        optimizer: where the optimizer's moments lie: with their `params`, or also spread over the mesh axis `data`,
            which the parameters are not (ZeRO stage 1, Rajbhandari et al. 2020).
    """

    misfits: Literal["error", "replicate"] = "error"
    optimizer: Literal["params", "data"] = "params"


def partition_spec(
    path: str, tensor: nnx.Param[Any], mesh: Mesh, sharding: ShardingConfig = ShardingConfig()
) -> PartitionSpec:
    """The tensor's placement on the mesh.

    A mesh axis that the mesh lacks, or of size one, shards nothing, so on a single device every spec is empty.
    """
    spec: list[str | None] = []
    for size, axis in zip(tensor.shape, tensor.out_sharding, strict=True):
        if axis is not None and axis not in RULES:
            raise ConfigError(f"{path}: no sharding rule for logical axis {axis!r}")
        target = None if axis is None else RULES[axis]
        if target is None or mesh.shape.get(target, 1) == 1:
            spec.append(None)
            continue
        misfit = None
        if target in spec:
            misfit = f"two dimensions map to mesh axis {target!r}"
        elif size % mesh.shape[target]:
            misfit = f"{axis} of size {size} does not divide over mesh axis {target}={mesh.shape[target]}"
        if misfit is not None and sharding.misfits == "error":
            raise ConfigError(f"{path}: {misfit}")
        spec.append(target if misfit is None else None)
    return _shortened(spec)


def moment_spec(tensor: nnx.Param[Any], placed: PartitionSpec, mesh: Mesh) -> PartitionSpec:
    """Return the placement of a tensor's moments under ZeRO stage 1: the tensor's own, and `data` on one more.

    This dimension is the largest that is whole and divides over `data`. Without one, the moments lie as the tensor
    does.
    """
    spec = [*placed, *[None] * (len(tensor.shape) - len(placed))]
    copies = mesh.shape.get("data", 1)
    free = [(size, place) for place, size in enumerate(tensor.shape) if spec[place] is None and size % copies == 0]
    if copies > 1 and free:
        spec[max(free, key=lambda entry: entry[0])[1]] = "data"
    return _shortened(spec)


def shardings(tensors: Tensors, mesh: Mesh, sharding: ShardingConfig = ShardingConfig()) -> dict[str, Any]:
    """A `NamedSharding` for every declared tensor, in the same nesting."""
    return map_tensors(lambda path, tensor: NamedSharding(mesh, partition_spec(path, tensor, mesh, sharding)), tensors)


def moment_shardings(tensors: Tensors, mesh: Mesh, sharding: ShardingConfig = ShardingConfig()) -> dict[str, Any]:
    """A `NamedSharding` for the optimizer's state of every declared tensor, in the same nesting."""
    if sharding.optimizer == "params":
        return shardings(tensors, mesh, sharding=sharding)

    def place(path: str, tensor: nnx.Param[Any]) -> NamedSharding:
        spec = partition_spec(path, tensor, mesh, sharding=sharding)
        return NamedSharding(mesh, moment_spec(tensor, spec, mesh))

    return map_tensors(place, tensors)


def _shortened(spec: list[Any]) -> PartitionSpec:
    while spec and spec[-1] is None:
        spec.pop()
    return PartitionSpec(*spec)
