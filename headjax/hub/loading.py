"""From files to parameters: each tensor is read once, into the buffers that become the arrays."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from headjax.core.progress import Progress
from headjax.core.tensors import Params, Tensor, Tensors, flatten, map_tensors
from headjax.hub.rules import Bound
from headjax.hub.safetensors_files import SafetensorsFiles, aligned_empty
from headjax.mesh.mesh import MeshConfig
from headjax.mesh.rules import shardings


class _Piece(NamedTuple):
    """One layer of a declared tensor: part `part` of what a rule names."""

    layer: int | None
    bound: Bound
    part: int


def load_params(
    tensors: Tensors,
    bound: Iterable[Bound],
    files: SafetensorsFiles,
    *,
    mesh: Mesh | None,
    dtype: str | None,
    progress: Progress,
) -> Params:
    """The parameters a model declares, read from files.

    Layers go straight into their places of a run's array, or into those of its shards that are on this process's
    devices. Beside the result, no more than one tensor of the file and one array are held.

    Args:
        tensors: the declarations.
        bound: every tensor with its name in the files.
        files: the files.
        mesh: where to place them; None is one device.
        dtype: type to convert to; None keeps that of the files, or the smallest that holds all layers of a run.
        progress: shows what is read.
    """
    pieces: dict[str, list[_Piece]] = defaultdict(list)
    for entry in bound:
        for part, place in enumerate(entry.ours):
            pieces[place.path].append(_Piece(place.layer, entry, part))
    mesh = MeshConfig().build(jax.devices()[:1]) if mesh is None else mesh
    placed = flatten(shardings(tensors, mesh))
    with progress("reading", len(placed), "arrays") as update:
        numbers = itertools.count(1)

        def load(path: str, tensor: Tensor) -> jax.Array:
            array = _load(tensor, pieces[path], files, placed[path], dtype)
            update(next(numbers), {})
            return array

        return map_tensors(load, tensors)


def _load(
    tensor: Tensor, pieces: list[_Piece], files: SafetensorsFiles, sharding: NamedSharding, dtype: str | None
) -> jax.Array:
    found = {files.dtype(piece.bound.theirs) for piece in pieces}
    kind = np.dtype(jax.numpy.dtype(dtype)) if dtype else np.dtype(jax.numpy.result_type(*found))
    everything = (slice(None),) * len(tensor.shape)
    places = {
        device: everything if index is None else index
        for device, index in sharding.addressable_devices_indices_map(tensor.shape).items()
    }
    shards = {_span(index, tensor.shape): index for index in places.values()}
    buffers: dict[Any, np.ndarray] = {}
    for piece in pieces:
        value = files.read(piece.bound.theirs)
        value = piece.bound.form.load(value, piece.bound.tensors, piece.part)
        for span, index in shards.items():
            if piece.layer is None:
                buffers[span] = _whole(value[index], kind)
                continue
            if span not in buffers:
                buffers[span] = aligned_empty(tuple(stop - start for start, stop in span), kind)
            start, stop = span[0]
            if start <= piece.layer < stop:
                buffers[span][piece.layer - start] = value[index[1:]]
        del value
    arrays = [jax.device_put(buffers[_span(index, tensor.shape)], device) for device, index in places.items()]
    return jax.make_array_from_single_device_arrays(tensor.shape, sharding, arrays)


def _whole(value: np.ndarray, kind: np.dtype) -> np.ndarray:
    """The value in a buffer of its own: itself where it is one already."""
    if value.flags.c_contiguous and value.dtype == kind:
        return value
    buffer = aligned_empty(value.shape, kind)
    buffer[...] = value
    return buffer


def _span(index: tuple[slice, ...], shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
