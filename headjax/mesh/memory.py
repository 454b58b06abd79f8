"""Memory of the devices of a mesh, and whether arrays fit into it."""

from __future__ import annotations

from collections.abc import Iterable

import jax
from jax.sharding import Mesh

from headjax.core.limits import check_memory, host_memory


def memory_of(mesh: Mesh | None = None) -> int | None:
    """Return the bytes of memory of all devices of a mesh; of this host where they are its processor's cores."""
    devices = jax.devices()[:1] if mesh is None else list(mesh.devices.flat)
    if devices[0].platform == "cpu":
        there = host_memory()
        return None if there is None else there * len({device.process_index for device in devices})
    ours = [device for device in devices if device.process_index == jax.process_index()]
    stats = ours[0].memory_stats() if ours else None
    return None if not stats or "bytes_limit" not in stats else len(devices) * int(stats["bytes_limit"])


def check_arrays(place: str, sizes: Iterable[int], there: int | None) -> None:
    """Check that a model's arrays can fit into memory."""
    check_memory(place, sum(sizes), there, "its arrays")
