"""Spreads a kernel that XLA cannot partition over the devices of the current mesh: batch and heads are independent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec

from headjax.attention.attended import Attended
from headjax.attention.kernels.request import Request


def spread(compute: Callable[..., Attended], mesh: Any, asked: Request) -> Callable[..., Attended]:
    """The kernel as a function of the whole arrays, computed by every device of the mesh on its part.

    Examples are spread over the mesh's batch axes and heads over the axis that heads are sharded on, each where the
    numbers divide; otherwise every device computes all of them.
    """
    from headjax.mesh.mesh import BATCH_AXES, parts_along
    from headjax.mesh.rules import RULES

    head_axis = RULES["heads"]
    counts = {asked.heads, *({asked.key_heads, asked.value_heads} - {1})}
    divides = head_axis in mesh.shape and all(count % mesh.shape[head_axis] == 0 for count in counts)
    axes = tuple(axis for axis in BATCH_AXES if axis in mesh.shape)

    def spec(array: jax.Array, head_dimension: int | None, batch_dimension: int | None = 0) -> PartitionSpec:
        parts: list[Any] = [None] * array.ndim
        if batch_dimension is not None and array.shape[batch_dimension] % parts_along(mesh, axes) == 0:
            parts[batch_dimension] = axes
        if head_dimension is not None and divides and array.shape[head_dimension] > 1:
            parts[head_dimension] = head_axis
        return PartitionSpec(*parts)

    def computed(query: jax.Array, key: jax.Array, value: jax.Array, **options: Any) -> Attended:
        arrays = {name: options.pop(name, None) for name in ("mask", "bias", "mixing")}
        whole = {
            "query": spec(query, 2),
            "key": spec(key, 2),
            "value": spec(value, 2),
            "mask": jax.tree.map(lambda array: spec(array, None, 0 if array.ndim else None), arrays["mask"]),
            "bias": None if arrays["bias"] is None else spec(arrays["bias"], 1),
            "mixing": None if arrays["mixing"] is None else spec(arrays["mixing"], 0, None),
        }

        def part(inputs: dict[str, Any]) -> jax.Array:
            given = {name: array for name, array in inputs.items() if array is not None or name in ("mask", "bias")}
            return compute(**given, **options).context

        contexts = PartitionSpec(spec(query, None)[0], None, head_axis if divides else None, None)
        inputs = {"query": query, "key": key, "value": value, **arrays}
        placed = jax.shard_map(part, mesh=mesh, in_specs=(whole,), out_specs=contexts, check_vma=False)
        return Attended(placed(inputs), None)

    return computed
