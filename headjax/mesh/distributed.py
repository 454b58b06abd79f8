"""Several processes of one program: their start, and the part of each in batches, arrays and decisions."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headjax.core.errors import HeadjaxError, require
from headjax.core.programs import Share
from headjax.mesh.mesh import batch_sharding, parts_along, replicated


def initialize(spec: str) -> None:
    """Connect this process to the others; to be called before anything asks for the devices."""
    if spec == "auto":
        options: dict[str, Any] = {}
    else:
        match = re.fullmatch(r"([^,]*:[^,]*),([0-9]{1,9}),([0-9]{1,9})", spec)
        if match is None or int(match[3]) >= int(match[2]):
            raise HeadjaxError(f"--distributed: expected auto or HOST:PORT,N,I with I < N, got {spec!r}")
        options = {"coordinator_address": match[1], "num_processes": int(match[2]), "process_id": int(match[3])}
    try:
        jax.distributed.initialize(**options)
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise HeadjaxError(f"--distributed: {spec}: {reason}") from None


def is_first() -> bool:
    """Return whether this process is the one that writes shared files."""
    return jax.process_index() == 0


def on_first(action: Callable[[], Any]) -> None:
    """Call an action on the first process; an error there is one on all. All processes call it together."""
    failure: HeadjaxError | None = None
    if is_first():
        try:
            action()
        except HeadjaxError as error:
            failure = error
    failed = failure is not None
    if jax.process_count() > 1:
        failed = bool(multihost_utils.broadcast_one_to_all(np.array(failed)))
    if failed:
        raise failure or HeadjaxError("process 0 cannot continue; its log has the reason")


def everyones(answer: int) -> list[int]:
    """Return the answers of all processes in their order, integers below 2**31. All processes call it together."""
    if jax.process_count() == 1:
        return [answer]
    return [int(each) for each in multihost_utils.process_allgather(np.array(answer, np.int32))]


def process_share(mesh: Mesh) -> Share:
    """Return the part of every global batch that this process's devices hold: rows index * size / count and on.

    Processes whose devices hold the same examples (a model axis over hosts) have the same part.
    """
    parts = parts_along(mesh)
    rows_of: dict[int, set[int]] = {}
    place: Any = batch_sharding(mesh)
    for device, (rows,) in place.devices_indices_map((parts,)).items():
        rows_of.setdefault(device.process_index, set()).update(range(parts)[rows])
    shards = sorted({frozenset(rows) for rows in rows_of.values()}, key=min)
    divides = len({len(rows) for rows in shards}) == 1 and sum(len(rows) for rows in shards) == parts
    require(divides, "mesh", "its slices, data and fsdp axes do not divide evenly over the processes")
    return Share(shards.index(frozenset(rows_of[jax.process_index()])), len(shards))


def on_this_process(tree: Any, mesh: Mesh) -> Any:
    """Return a mesh's arrays as whole arrays on one of this process's devices. All processes call it together."""
    if mesh.size == 1:
        return tree
    if jax.process_count() > 1:
        tree = multihost_utils.process_allgather(tree, tiled=True)
    return jax.device_put(tree, jax.local_devices()[0])


def fetch(tree: Any) -> Any:
    """Return arrays as whole NumPy arrays, wherever they lie. All processes call it together where they hold parts."""
    if jax.process_count() > 1:
        gather = functools.partial(multihost_utils.process_allgather, tiled=True)
        tree = jax.tree.map(lambda array: array if array.is_fully_replicated else gather(array), tree)
    return jax.device_get(tree)


def place_copies(tree: Any, places: Any) -> Any:
    """Return copies of arrays at their places on a mesh. All processes call it together."""
    if jax.process_count() == 1:
        return jax.device_put(jax.tree.map(jnp.copy, tree), places)

    def place(array: jax.Array, sharding: NamedSharding) -> jax.Array:
        if not array.is_fully_addressable:
            return jax.jit(jnp.copy, out_shardings=sharding)(array)
        whole = np.asarray(array)
        return jax.make_array_from_callback(whole.shape, sharding, lambda part: whole[part])

    return jax.tree.map(place, tree, places)


def put_batch(batch: Mapping[str, jax.typing.ArrayLike], mesh: Mesh) -> dict[str, jax.Array]:
    """Return this process's part of a batch as global arrays, spread over the mesh's batch axes."""
    place = batch_sharding(mesh)
    return {name: jax.make_array_from_process_local_data(place, np.asarray(array)) for name, array in batch.items()}


def put_whole_batch(batch: Mapping[str, jax.typing.ArrayLike], mesh: Mesh) -> dict[str, jax.Array]:
    """Return a batch that every process has whole as global arrays, spread over the mesh's batch axes."""
    place, arrays = batch_sharding(mesh), {name: np.asarray(array) for name, array in batch.items()}
    return {name: jax.make_array_from_process_local_data(place, a, a.shape) for name, a in arrays.items()}


def wait_for_all(name: str) -> None:
    """Return once every process has come here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


class Vote:
    """A vote of all processes: yes where any of them wants something, the same answer on all.

    Among several processes an answer is that to the call before, which the devices have computed meanwhile, so that
    asking at every step holds no step up.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._place = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self._any = jax.jit(lambda wishes: wishes.any(), out_shardings=replicated(mesh))
        self._size = mesh.size
        self._pending: jax.Array | None = None

    def __call__(self, wish: bool) -> bool:
        if jax.process_count() == 1:
            return wish
        wishes = jax.make_array_from_callback((self._size,), self._place, lambda _: np.array([wish]))
        before, self._pending = self._pending, self._any(wishes)
        return before is not None and bool(before)
