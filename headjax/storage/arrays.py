"""Parameters of a model directory, written and read with Orbax."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from headjax.core.errors import CheckpointError
from headjax.core.memory import check_memory, memory_of
from headjax.core.tensors import Params, Tensors, check, flatten, map_tensors
from headjax.mesh.rules import shardings
from headjax.storage.files import first_line
from headjax.storage.paths import absolute, is_bucket, is_plain


def write_params(params: Params, path: Path, name: str | None = None) -> None:
    """Write parameters into a new folder, or as the item of a name in a checkpoint that may have others."""
    import orbax.checkpoint as ocp

    # Arrays written one after another need little memory besides themselves. Trained weights hardly compress.
    gigabytes = max(0.1, 1.1e-9 * max((array.nbytes for array in jax.tree.leaves(params)), default=0))
    arrays = jax.device_get(params) if jax.process_count() > 1 else params
    alone = _this_process_alone()
    args: Any = ocp.args.PyTreeSave(arrays)
    handler: Any = ocp.PyTreeCheckpointHandler(
        use_compression=False, use_ocdbt=is_plain(path), save_concurrent_gb=gigabytes, multiprocessing_options=alone
    )
    if name is not None:
        handler, args = ocp.CompositeCheckpointHandler(**{name: handler}), ocp.args.Composite(**{name: args})
    with ocp.Checkpointer(handler, multiprocessing_options=alone) as checkpointer:
        checkpointer.save(str(absolute(path)), args=args)


def read_params(tensors: Tensors, path: Path, mesh: Mesh | None) -> Params:
    """Read the parameters that a model declares from the folder that holds them."""
    import orbax.checkpoint as ocp

    if not path.is_dir():
        raise CheckpointError(f"{path}: missing")
    processes = _this_process_alone() if mesh is None else ocp.options.MultiprocessingOptions()
    # The parameters of a bucket were written on a disk and copied: Orbax's own marker is not among them.
    atomicity = ocp.options.AtomicityOptions(allow_legacy_atomic_rename=is_bucket(path))
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=processes)
    folder = str(absolute(path))
    with ocp.Checkpointer(handler, multiprocessing_options=processes, atomicity_options=atomicity) as checkpointer:
        try:
            stored = checkpointer.metadata(folder).item_metadata.tree
        except Exception as error:
            raise CheckpointError(f"{path}: cannot be read ({first_line(error)})") from None
        check(tensors, stored)
        sizes = (math.prod(entry.shape) * np.dtype(entry.dtype).itemsize for entry in flatten(stored).values())
        check_memory(str(path.parent), sum(sizes), memory_of(mesh), "its arrays")
        places = {} if mesh is None else flatten(shardings(tensors, mesh))
        shapes = jax.tree.map(lambda entry: jax.ShapeDtypeStruct(entry.shape, entry.dtype), stored)

        def restore_args(keys: Any, entry: jax.ShapeDtypeStruct) -> ocp.RestoreArgs:
            if mesh is None:
                return ocp.RestoreArgs(restore_type=np.ndarray, dtype=entry.dtype)
            place = places["/".join(str(key.key) for key in keys)]
            return ocp.ArrayRestoreArgs(sharding=place, dtype=entry.dtype, global_shape=entry.shape)

        args = ocp.args.PyTreeRestore(shapes, restore_args=jax.tree.map_with_path(restore_args, shapes))
        try:
            restored = flatten(checkpointer.restore(folder, args=args))
        except Exception as error:
            raise CheckpointError(f"{path}: cannot be read ({first_line(error)})") from None
    # Without a mesh they belong to none, and compute on any one that is set later.
    return map_tensors(lambda name, _: jax.device_put(restored.pop(name)) if mesh is None else restored[name], tensors)


def _this_process_alone() -> Any:
    """Return Orbax's options for a process that waits for no other."""
    import orbax.checkpoint as ocp

    if jax.process_count() == 1:
        return ocp.options.MultiprocessingOptions()
    this = jax.process_index()
    return ocp.options.MultiprocessingOptions(this, {this}, barrier_sync_key_prefix=f"model{this}")
