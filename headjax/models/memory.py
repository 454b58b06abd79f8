"""Memory that reading, training and evaluating a model take at the very least, checked before anything is built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from headjax.core.limits import check_memory, host_memory
from headjax.core.tensors import count
from headjax.models.config import ModelConfig

STATE = 12
"""Bytes of a parameter in training: itself and both moments of Adam, in float32. Gradients come on top."""

ACTIVATION = 2
"""Bytes of a number of the residual stream, in bfloat16. At least one layer's are there at once."""


def memory_of(mesh: Mesh | None = None) -> int | None:
    """Return the bytes of memory of all devices of a mesh; of this host where they are its processor's cores.

    Args:
        mesh: the devices; None is the first one of this process.

    Returns:
        The bytes, or None where neither the device nor the system says.
    """
    devices = jax.devices()[:1] if mesh is None else list(mesh.devices.flat)
    if devices[0].platform == "cpu":
        there = host_memory()
        return None if there is None else there * len({device.process_index for device in devices})
    ours = [device for device in devices if device.process_index == jax.process_index()]
    stats = ours[0].memory_stats() if ours else None
    return None if not stats or "bytes_limit" not in stats else len(devices) * int(stats["bytes_limit"])


def check_arrays(place: str, sizes: Iterable[int], there: int | None, *, lazy: bool = False) -> None:
    """Check that a model's arrays can fit into memory: all of them, or the largest where they are deferred.

    Args:
        place: the directory that they are in.
        sizes: bytes of each.
        there: bytes of memory, see `memory_of`.
        lazy: whether they are deferred, so that one at a time is made.

    Raises:
        ConfigError: they take more than there is.
    """
    if lazy:
        check_memory(place, max(sizes, default=0), there, "its arrays, one at a time,")
    else:
        check_memory(place, sum(sizes), there, "its arrays")


def check_state(field: str, model: ModelConfig, there: int | None) -> None:
    """Check that the state of a training run can fit into memory.

    Args:
        field: path of the model's recipe in the config.
        model: the architecture.
        there: bytes of memory, see `memory_of`.

    Raises:
        ConfigError: it takes more than there is.
    """
    parameters = count(model.tensors())
    check_memory(field, STATE * parameters, there, f"{parameters:,} parameters in training")


def check_batch(
    field: str, batch_size: int, example: Mapping[str, Any], width: int, there: int | None, parts: int = 1
) -> None:
    """Check that a batch and the residual stream over it can fit into memory.

    Args:
        field: path of the batch size in the config, or the option.
        batch_size: number of examples.
        example: one of them.
        width: width of the residual stream.
        there: bytes of memory, see `memory_of`.
        parts: number of parts of the batch that are computed one after another.

    Raises:
        ConfigError: they take more than there is.
    """
    arrays = {name: np.asarray(array) for name, array in example.items()}
    tokens = max((array.size for name, array in arrays.items() if name.endswith("input_ids")), default=0)
    needed = batch_size * sum(array.nbytes for array in arrays.values())
    needed += batch_size // parts * tokens * width * ACTIVATION
    check_memory(field, needed, there, f"{batch_size:,} examples")
