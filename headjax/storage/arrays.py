"""Parameters of a model directory on disk: written and read with Orbax, all at once or one array after another."""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from headjax.core.deferred import Deferred, any_deferred, deferred
from headjax.core.errors import CheckpointError
from headjax.core.limits import host_memory
from headjax.core.progress import Progress, silent
from headjax.core.tensors import Params, Tensors, check, flatten, map_tensors, nested
from headjax.mesh.memory import check_arrays, memory_of
from headjax.mesh.mesh import MeshConfig
from headjax.mesh.rules import shardings
from headjax.storage.files import first_line
from headjax.storage.paths import is_bucket

TOGETHER = 2**28
"""Bytes of neighbouring arrays that are read together; a larger array is read alone."""


def write_params(params: Params, path: Path, progress: Progress = silent) -> None:
    """Write parameters into a new folder.

    Deferred ones are made, written and dropped one after another.

    Raises:
        ParameterError: a deferred array is not finite; the message names its path.
    """
    import orbax.checkpoint as ocp

    alone = _this_process_alone()
    if any_deferred(params):
        flat = flatten(params)
        with progress("writing", len(flat), "arrays") as update:
            values = nested({name: deferred(array).finite(name) for name, array in flat.items()})
            # Orbax warns where it finds no handler of JAX's own arrays.
            own = (jax.Array, ocp.type_handlers.ArrayHandler())
            registry = ocp.type_handlers.create_type_handler_registry((Deferred, _one_by_one(update)), own)
            _save(values, path, alone, type_handler_registry=registry)
        return
    # Arrays written one after another need little memory besides themselves.
    largest = max((array.nbytes for array in jax.tree.leaves(params)), default=0)
    arrays = jax.device_get(params) if jax.process_count() > 1 else params
    _save(arrays, path, alone, save_concurrent_gb=max(0.1, 1.1e-9 * largest))


def _save(params: Params, path: Path, processes: Any, **options: Any) -> None:
    """Write a tree of arrays. Trained weights hardly compress, so that they are written as they are."""
    import orbax.checkpoint as ocp

    handler = ocp.PyTreeCheckpointHandler(use_compression=False, multiprocessing_options=processes, **options)
    with ocp.Checkpointer(handler, multiprocessing_options=processes) as checkpointer:
        checkpointer.save(path.absolute(), args=ocp.args.PyTreeSave(params))


def _one_by_one(update: Callable[[int, Mapping[str, float]], None]) -> Any:
    """Return Orbax's handler of deferred arrays, which has at most one of them in memory."""
    import orbax.checkpoint as ocp

    class OneByOne(ocp.type_handlers.NumpyHandler):
        """Writes deferred arrays in the order in which their source is read fastest."""

        async def serialize(self, values: Sequence[Deferred], infos: Sequence[Any], args: Any = None) -> Sequence[Any]:
            args = args or [ocp.SaveArgs()] * len(values)
            order = sorted(range(len(values)), key=lambda number: values[number].order)
            for done, number in enumerate(order, start=1):
                array = np.asarray(values[number])
                for written in await super().serialize([array], [infos[number]], [args[number]]):
                    written.result()
                del array
                update(done, {})
            return []

    return OneByOne(deepcopy_host_arrays=False)


def read_params(tensors: Tensors, path: Path, mesh: Mesh | None) -> Params:
    """Read the parameters that a model declares from the folder that holds them.

    Args:
        tensors: the declarations.
        path: the folder.
        mesh: the mesh to place the parameters on; None is one device of this process.

    Raises:
        CheckpointError: the folder cannot be read.
        ConfigError: the arrays cannot fit into memory.
        ParameterError: a missing, extra or wrongly shaped array; the message names its path.
    """
    if mesh is None:
        reader = _Reader(tensors, path)
        check_arrays(str(path.parent), reader.sizes.values(), memory_of())
        places = flatten(shardings(tensors, MeshConfig().build(jax.local_devices()[:1])))
        return map_tensors(lambda name, _: jax.device_put(reader.take(name), places[name]), tensors)
    import orbax.checkpoint as ocp

    together = ocp.options.MultiprocessingOptions()
    with _reading(path, together) as checkpointer:
        stored = _stored(checkpointer, tensors, path)
        check_arrays(str(path.parent), map(_size, jax.tree.leaves(stored)), memory_of(mesh))
        restored = jax.tree.map(
            lambda entry, place: ocp.ArrayRestoreArgs(sharding=place, dtype=entry.dtype, global_shape=entry.shape),
            stored,
            shardings(tensors, mesh),
        )
        return _restore(checkpointer, path, ocp.args.PyTreeRestore(item=stored, restore_args=restored))


def read_deferred(tensors: Tensors, path: Path, unchanged: Callable[[], None]) -> Params:
    """Return the parameters as deferred arrays, which are read from the folder whenever they are asked for.

    Args:
        tensors: the declarations.
        path: the folder.
        unchanged: called after every reading; raises an error if the folder is no longer the one it was.

    Raises:
        CheckpointError: the folder cannot be read, also of every later reading.
        ConfigError: an array alone cannot fit into memory.
        ParameterError: a missing, extra or wrongly shaped array; the message names its path.
    """
    reader = _Reader(tensors, path)
    check_arrays(str(path.parent), reader.sizes.values(), host_memory(), lazy=True)

    def make(name: str) -> np.ndarray:
        array = reader.array(name)
        unchanged()
        return array

    def entry(name: str, _: Any) -> Deferred:
        stored = reader.stored[name]
        return Deferred(tuple(stored.shape), np.dtype(stored.dtype), functools.partial(make, name), reader.group[name])

    return map_tensors(entry, tensors)


class _Reader:
    """The arrays of a folder on this process, read in groups of neighbours, of which the last one read is kept."""

    def __init__(self, tensors: Tensors, path: Path) -> None:
        self._path = path
        with _reading(path, _this_process_alone()) as checkpointer:
            found = flatten(_stored(checkpointer, tensors, path))
        self.stored = {name: found[name] for name in flatten(tensors)}
        self.sizes = {name: _size(entry) for name, entry in self.stored.items()}
        ends = itertools.accumulate(self.sizes.values())
        self.group = {name: end // TOGETHER for name, end in zip(self.stored, ends, strict=True)}
        self._kept: dict[str, np.ndarray] = {}

    def array(self, name: str) -> np.ndarray:
        """Return an array, read-only, which is kept until one of another group is asked for."""
        if name not in self._kept:
            self._kept.clear()
            self._kept = self._read([other for other, group in self.group.items() if group == self.group[name]])
        return self._kept[name]

    def take(self, name: str) -> np.ndarray:
        """Return an array and keep it no longer."""
        self.array(name)
        return self._kept.pop(name)

    def _read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        import orbax.checkpoint as ocp

        chosen = nested({name: self.stored[name] for name in names})
        with _reading(self._path, _this_process_alone()) as checkpointer:
            args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), chosen)
            wanted = ocp.args.PyTreeRestore(item=chosen, restore_args=args, partial_restore=True)
            arrays = flatten(_restore(checkpointer, self._path, wanted))
        for array in arrays.values():
            array.flags.writeable = False
        return arrays


def _size(entry: jax.ShapeDtypeStruct) -> int:
    """Return an array's bytes."""
    return math.prod(entry.shape) * entry.dtype.itemsize


def _stored(checkpointer: Any, tensors: Tensors, path: Path) -> Params:
    """Return shapes and types of the arrays in a folder, which are those declared."""
    if not path.is_dir():
        raise CheckpointError(f"{path}: missing")
    try:
        found = checkpointer.metadata(os.fspath(path.absolute())).item_metadata.tree
    except Exception as error:
        raise CheckpointError(f"{path}: cannot be read ({first_line(error)})") from None
    check(tensors, found)
    shapes: Params = jax.tree.map(lambda entry: jax.ShapeDtypeStruct(entry.shape, entry.dtype), found)
    return shapes


def _restore(checkpointer: Any, path: Path, wanted: Any) -> Params:
    try:
        restored: Params = checkpointer.restore(os.fspath(path.absolute()), args=wanted)
    except Exception as error:
        raise CheckpointError(f"{path}: cannot be read ({first_line(error)})") from None
    return restored


def _reading(path: Path, processes: Any) -> Any:
    """Return Orbax's reader of a folder."""
    import orbax.checkpoint as ocp

    # The parameters of a bucket were written on a disk and copied: Orbax's own marker is not among them.
    atomicity = ocp.options.AtomicityOptions(allow_legacy_atomic_rename=is_bucket(path))
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=processes, type_handler_registry=_handlers())
    return ocp.Checkpointer(handler, multiprocessing_options=processes, atomicity_options=atomicity)


@functools.cache
def _handlers() -> Any:
    """Return Orbax's handlers of arrays, with another way to their shapes and types.

    Orbax also asks for the JSON of an array's storage, which TensorStore 0.1.86 never frees: 100 kB for each model
    that is loaded.
    """
    import orbax.checkpoint as ocp

    class Arrays(ocp.type_handlers.ArrayHandler):
        metadata = _shapes_and_types

    class NumpyArrays(ocp.type_handlers.NumpyHandler):
        metadata = _shapes_and_types

    return ocp.type_handlers.create_type_handler_registry((jax.Array, Arrays()), (np.ndarray, NumpyArrays()))


async def _shapes_and_types(handler: Any, infos: Sequence[Any]) -> list[Any]:
    """Return the metadata of arrays in a folder, see `_handlers`."""
    import orbax.checkpoint as ocp
    import tensorstore

    specs = [tensorstore.Spec(ocp.type_handlers.get_json_tspec_read(one, one.is_ocdbt_checkpoint)) for one in infos]
    contexts = [one.ts_context for one in infos]
    opening = [tensorstore.open(spec, open=True, context=one) for spec, one in zip(specs, contexts, strict=True)]
    arrays = await asyncio.gather(*opening)
    return [
        ocp.metadata.ArrayMetadata(
            name=one.name, directory=one.parent_dir, shape=array.shape, sharding=None, dtype=np.dtype(array.dtype.name)
        )
        for one, array in zip(infos, arrays, strict=True)
    ]


def _this_process_alone() -> Any:
    """Return Orbax's options for a process that waits for no other."""
    import orbax.checkpoint as ocp

    if jax.process_count() == 1:
        return ocp.options.MultiprocessingOptions()
    this = jax.process_index()
    return ocp.options.MultiprocessingOptions(this, {this}, barrier_sync_key_prefix=f"model{this}")
