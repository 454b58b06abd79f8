"""One table from logical axes to mesh axes; every array's sharding follows from it and the tensor's declaration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headjax.errors import ConfigError
from headjax.tensors import Tensor, Tensors, map_tensors

RULES: Mapping[str, str | None] = {
    "layers": None,
    "embed": "fsdp",
    "heads": "model",
    "head_dim": None,
    "kv_heads": None,
    "logit_heads": None,
    "latent": None,
    "shared_dim": None,
    "feed_forward": "model",
    "vocabulary": "model",
}
"""Mesh axis of every logical axis; None is replicated."""


def partition_spec(path: str, tensor: Tensor, mesh: Mesh, rules: Mapping[str, str | None] = RULES) -> PartitionSpec:
    """The tensor's placement on the mesh.

    An axis of a mesh of size one shards nothing, so on a single device every spec is empty.

    Raises:
        ConfigError: a logical axis without a rule, two dimensions on one mesh axis, or a size that does not divide.
    """
    spec: list[str | None] = []
    for size, axis in zip(tensor.shape, tensor.axes, strict=True):
        if axis is not None and axis not in rules:
            raise ConfigError(f"{path}: no sharding rule for logical axis {axis!r}")
        target = None if axis is None else rules[axis]
        if target is None or mesh.shape[target] == 1:
            spec.append(None)
            continue
        if target in spec:
            raise ConfigError(f"{path}: two dimensions map to mesh axis {target!r}")
        if size % mesh.shape[target]:
            raise ConfigError(
                f"{path}: {axis} of size {size} does not divide over mesh axis {target}={mesh.shape[target]}"
            )
        spec.append(target)
    while spec and spec[-1] is None:
        spec.pop()
    return PartitionSpec(*spec)


def shardings(tensors: Tensors, mesh: Mesh, rules: Mapping[str, str | None] = RULES) -> dict[str, Any]:
    """A `NamedSharding` for every declared tensor, in the same nesting."""
    return map_tensors(lambda path, tensor: NamedSharding(mesh, partition_spec(path, tensor, mesh, rules)), tensors)
