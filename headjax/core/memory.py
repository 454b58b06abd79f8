"""Memory of this machine and of devices, and the least that a model takes of it, checked before anything is built."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from headjax.core.errors import ConfigError, HeadjaxError

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

MEMORY = "HEADJAX_MEMORY"
"""Environment variable that replaces the amount of memory that the system states."""


def host_memory() -> int | None:
    """Return the bytes of memory of this machine, swap included, or of its container; None where nobody says."""
    if MEMORY in os.environ:
        text = os.environ[MEMORY]
        match = re.fullmatch(r"([0-9]{1,15})([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
        if match is None or not int(match[1]):
            raise HeadjaxError(f"{MEMORY}: expected a number of bytes such as 500M or 8G, got {text[:60]!r}")
        return int(match[1]) * _UNITS[match[2].upper()]
    try:
        sizes = dict(re.findall(r"^(\w+): +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE))
        there = 1024 * (int(sizes["MemTotal"]) + int(sizes.get("SwapTotal", 0)))
    except (OSError, KeyError):
        return None
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            there = min(there, int(Path(file).read_text()))
        except (OSError, ValueError):  # no such file, or no limit
            continue
    return there


def check_memory(field: str, needed: int, there: int | None, what: str) -> None:
    """Check that the arrays of a field can fit into memory, before anything is built for it."""
    if there is not None and needed > there:
        raise ConfigError(
            f"{field}: {what} take at least {needed / 1e9:,.3g} GB of memory, there are {there / 1e9:,.3g}; "
            f"headjax plan computes the needs of a step ({MEMORY} says how much there is)"
        )


def memory_of(mesh: Mesh | None = None) -> int | None:
    """Return the bytes of memory of all devices of a mesh; of this host where they are its processor's cores."""
    devices = jax.devices()[:1] if mesh is None else list(mesh.devices.flat)
    if devices[0].platform == "cpu":
        there = host_memory()
        return None if there is None else there * len({device.process_index for device in devices})
    ours = [device for device in devices if device.process_index == jax.process_index()]
    stats = ours[0].memory_stats() if ours else None
    return None if not stats or "bytes_limit" not in stats else len(devices) * int(stats["bytes_limit"])


STATE = 12
"""Bytes of a parameter in training: itself and both moments of Adam, in float32. Gradients come on top."""

ACTIVATION = 2
"""Bytes of a number of the residual stream, in bfloat16. At least one layer's are there at once."""


def check_training_memory(field: str, parameters: int, there: int | None) -> None:
    """Check that the state of a training run can fit into memory."""
    check_memory(field, STATE * parameters, there, f"{parameters:,} parameters in training")


def check_batch_memory(
    field: str, batch_size: int, example: Mapping[str, Any], width: int, there: int | None, parts: int = 1
) -> None:
    """Check that a batch and the residual stream over it can fit into memory."""
    arrays = {name: np.asarray(array) for name, array in example.items()}
    tokens = max((array.size for name, array in arrays.items() if name.endswith("input_ids")), default=0)
    needed = batch_size * sum(array.nbytes for array in arrays.values())
    needed += batch_size // parts * tokens * width * ACTIVATION
    check_memory(field, needed, there, f"{batch_size:,} examples")
