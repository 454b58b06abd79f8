"""The device mesh: axes `slices`, `data`, `fsdp` and `model`, where batches and activations lie on it, random bits.

On meshes with explicit axes, which `jax.make_mesh` makes, types of arrays name their placement, and each operation has
to say where its result lies when its operands leave that open. Inside `spread_by_compiler` they need not: there the
axes are automatic, as on other meshes, and only results are typed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from headjax.core.errors import ConfigError, require
from headjax.core.fields import Checked
from headjax.core.tensors import in_host_memory

COPY_AXES = ("slices", "data")
"""Mesh axes over which the parameters are copied."""

BATCH_AXES = (*COPY_AXES, "fsdp")
"""Mesh axes over which the examples of a batch are spread."""

SPREADING = ("data", "fsdp")
"""Axes of a mesh over which examples can be spread."""

AXES = (*BATCH_AXES, "model")
"""All mesh axes, from the one that sends least to the one that sends most."""

Result = TypeVar("Result")
F = TypeVar("F", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class MeshConfig(Checked):
    """Sizes of the mesh axes; one of `data`, `fsdp` and `model` may be -1 and takes the devices that remain.

    The three lie within a slice, whose devices have a fast network among them. Slices only share gradients, over the
    data-centre network.

        >>> headjax.MeshConfig().build().axis_names
        ('slices', 'data', 'fsdp', 'model')

    Attributes:
        data: copies of the model within a slice that each see a part of the batch.
        fsdp: devices over which each copy's parameters are also spread, gathered where used; they split the batch too.
        model: devices that split heads, feed-forward and vocabulary.
        slices: slices, each with copies of the model that see a part of the batch; -1 takes the number that the
            devices belong to.
    """

    data: int = -1
    fsdp: int = 1
    model: int = 1
    slices: int = -1

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = {"data": self.data, "fsdp": self.fsdp, "model": self.model}
        few = sum(size == -1 for size in sizes.values()) <= 1
        require(few, "data", "only one of data, fsdp and model may be -1")
        for name, size in (sizes | {"slices": self.slices}).items():
            require(size == -1 or size >= 1, name, f"must be -1 or at least 1, got {size}")

    def build(self, devices: Sequence[jax.Device] | None = None) -> Mesh:
        """Return the mesh over these devices, by default over all.

        Within a slice, devices that follow each other on an axis are neighbours in the slice's network where its shape
        allows; the last axis comes first. Where devices do not say which slice they belong to, as simulated ones,
        slices are equal parts of their list.

        Raises:
            ConfigError: the sizes do not multiply to the number of devices, or the devices belong to another number of
                slices.
        """
        devices = list(jax.devices() if devices is None else devices)
        slices = self._slices(devices)
        within, sizes = len(slices[0]), [self.data, self.fsdp, self.model]
        fixed = math.prod(size for size in sizes if size != -1)
        if -1 in sizes and within % fixed == 0:
            sizes[sizes.index(-1)] = within // fixed
        if math.prod(sizes) != within:
            named = ", ".join(f"{name}={size}" for name, size in zip(AXES[1:], sizes, strict=True))
            of = f" of each of {len(slices)} slices" if len(slices) > 1 else ""
            raise ConfigError(f"mesh: {named} does not fill {within} devices{of}")
        arranged = np.stack([_arranged(part, sizes) for part in slices])
        return Mesh(arranged, AXES, axis_types=(AxisType.Auto,) * len(AXES))

    def _slices(self, devices: list[jax.Device]) -> list[list[jax.Device]]:
        """Return the devices of every slice, slices by their index, devices in the order given."""
        if devices[0].platform != "tpu":
            size, remainder = divmod(len(devices), max(self.slices, 1))
            require(remainder == 0, "mesh.slices", f"{self.slices} does not divide {len(devices)} devices")
            return [devices[start : start + size] for start in range(0, len(devices), size)]
        by_index: dict[int, list[jax.Device]] = {}
        for device in devices:
            by_index.setdefault(getattr(device, "slice_index", None) or 0, []).append(device)
        message = f"{self.slices} named, but the devices belong to {len(by_index)}; name as many, or -1"
        require(self.slices in (-1, len(by_index)), "mesh.slices", message)
        even = len({len(part) for part in by_index.values()}) == 1
        require(even, "mesh.slices", f"the {len(by_index)} slices hold different numbers of devices")
        return [by_index[index] for index in sorted(by_index)]


def _arranged(devices: Sequence[jax.Device], sizes: Sequence[int]) -> np.ndarray:
    """Return a slice's devices in this shape, neighbours along its axes where JAX knows such an order."""
    chips: Sequence[Any] = devices if devices[0].platform == "tpu" else ()
    places = np.asarray([(*chip.coords, chip.core_on_chip) for chip in chips])
    # JAX orders TPU chips that fill a box of coordinates.
    if not chips or len(chips) == math.prod((places.max(axis=0) - places.min(axis=0) + 1).tolist()):
        with contextlib.suppress(NotImplementedError):  # no order has these axes along the links
            return mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    return np.asarray(devices).reshape(sizes)


def current_mesh(*axes: str) -> Any | None:
    """Return the mesh set with `jax.set_mesh`; None without one that has these axes, on one device, in `shard_map`."""
    mesh = jax.sharding.get_abstract_mesh()
    alone = mesh.empty or mesh.size == 1 or mesh.manual_axes
    return None if alone or not mesh.shape.keys() >= {*axes} else mesh


def axes_of(mesh: Any, axes: Sequence[str]) -> tuple[str, ...]:
    """Return those of the axes that a mesh has; one that a user made may lack `slices`."""
    return tuple(axis for axis in axes if axis in mesh.shape)


def parts_along(mesh: Any, axes: Sequence[str] = BATCH_AXES) -> int:
    """Return the number of parts that axes split a dimension into, by default a batch; one that is lacking counts 1."""
    return math.prod(mesh.shape.get(axis, 1) for axis in axes)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of examples along the first dimension, spread over all batch axes."""
    return NamedSharding(mesh, PartitionSpec(axes_of(mesh, BATCH_AXES)))


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding of a value that every device has whole."""
    return NamedSharding(mesh, PartitionSpec())


def check_batch_size(batch_size: int, mesh: Mesh, accumulate: int = 1) -> None:
    """Raise `ConfigError` unless a batch in `accumulate` parts divides evenly over the mesh's batch axes."""
    parts = parts_along(mesh)
    axes = " x ".join(axis for axis in axes_of(mesh, BATCH_AXES) if axis != "slices" or mesh.shape[axis] > 1)
    over = f"{parts} devices ({axes})" + (f" in {accumulate} parts (accumulate)" if accumulate > 1 else "")
    require(batch_size % (parts * accumulate) == 0, "batch_size", f"{batch_size} does not divide over {over}")


def by_example(x: Result) -> Result:
    """Return the arrays `[batch, ...]` of a tree with their examples spread over the batch axes of the current mesh.

    The compiler would else be free to spread activations as the parameters are, with every example on every device
    of the `fsdp` axis. Without a mesh, or where the examples do not divide, an array stays as it is; scalars do too.
    """
    mesh = current_mesh(*SPREADING)
    if mesh is None:
        return x
    parts = parts_along(mesh)

    def spread(array: jax.Array) -> jax.Array:
        if array.ndim == 0 or array.shape[0] % parts:
            return array
        return jax.lax.with_sharding_constraint(array, PartitionSpec(axes_of(mesh, BATCH_AXES)))

    return jax.tree.map(spread, x)


def look_up(table: jax.Array, rows: jax.Array) -> jax.Array:
    """Return rows of a table `[rows, width]` for numbers `[batch, length]`, as `[batch, length, width]`, by example.

    Where the table's columns are spread over the mesh axis `fsdp`, each device looks up its columns for the examples
    of all devices along that axis, and these then exchange them: far less than to gather the table. Both steps are
    said here, since from one to the other at once the compiler only knows the way over whole arrays on every device.
    """
    x = jnp.take(table, rows, axis=0)
    mesh = current_mesh(*SPREADING)
    if mesh is None or mesh.shape["fsdp"] == 1 or x.shape[0] % parts_along(mesh) or x.shape[-1] % mesh.shape["fsdp"]:
        return by_example(x)
    copies = axes_of(mesh, COPY_AXES)
    return by_example(jax.lax.with_sharding_constraint(x, PartitionSpec(copies, None, "fsdp")))


def explicit_mesh(*trees: Any) -> AbstractMesh | None:
    """Return the mesh with explicit axes that is set, or on which an array of the trees lies; None without one."""
    mesh = jax.sharding.get_abstract_mesh()
    for leaf in jax.tree.leaves(trees) if mesh.empty else ():
        sharding = jax.typeof(leaf).sharding if isinstance(leaf, jax.Array) else None
        if isinstance(sharding, NamedSharding) and AxisType.Explicit in sharding.mesh.axis_types:
            mesh = sharding.mesh.abstract_mesh
            break
    return mesh if AxisType.Explicit in mesh.axis_types and not mesh.manual_axes else None


def sharding_of(array: jax.typing.ArrayLike) -> NamedSharding | None:
    """Return the placement on a mesh that an array's type names, traced or not; None without one."""
    sharding = getattr(jax.typeof(array), "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) and not sharding.mesh.empty else None


def spread_by_compiler(function: Callable[..., Result], like: Any, *args: Any) -> Result:
    """Return `function(*args)`, computed with automatic axes if the mesh has explicit ones."""
    mesh = explicit_mesh(args)
    if mesh is None:
        return function(*args)

    def place(target: Any) -> NamedSharding:
        if isinstance(target, PartitionSpec):
            return NamedSharding(mesh, target)
        sharding = sharding_of(target)
        return NamedSharding(mesh, PartitionSpec() if sharding is None else sharding.spec)

    places = jax.tree.map(place, like, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
    computed: Result = jax.sharding.auto_axes(function, out_sharding=places)(*args)
    return computed


def spread_by_example(function: Callable[..., Result], examples: jax.Array, *args: Any) -> Result:
    """Do `spread_by_compiler`; results with as many rows as `examples` have the sharding of these along that axis."""
    sharding = sharding_of(examples)
    rows = PartitionSpec() if sharding is None else PartitionSpec(*sharding.spec[:1])

    def place(shape: jax.ShapeDtypeStruct) -> PartitionSpec:
        return rows if shape.shape[:1] == examples.shape[:1] else PartitionSpec()

    shapes = jax.eval_shape(functools.partial(spread_by_compiler, function, PartitionSpec()), *args)
    return spread_by_compiler(function, jax.tree.map(place, shapes), *args)


def placed_as(array: jax.Array, like: jax.Array, axes: int) -> jax.Array:
    """Return an array that lies along its first axes, where they are as long, as `like` does; whole along others."""
    mesh = explicit_mesh(like)
    sharding = None if mesh is None else sharding_of(like)
    if sharding is None:
        return array
    spec = [*sharding.spec, *[None] * (like.ndim - len(sharding.spec))][:axes]
    kept = [name if array.shape[axis] == like.shape[axis] else None for axis, name in enumerate(spec)]
    return jax.sharding.reshard(array, NamedSharding(sharding.mesh, PartitionSpec(*kept)))


def take(array: jax.Array, index: jax.typing.ArrayLike, axis: int, name: str) -> jax.Array:
    """Return entries along an axis, on the devices where the array lies; `name` says in a warning what they are.

    On a mesh with explicit axes an axis whose new length does not divide over its devices becomes whole on all of them,
    with a warning.
    """
    if in_host_memory((array, index)):
        return jax.device_put(np.take(np.asarray(array), np.asarray(index), axis=axis))
    mesh, sharding = explicit_mesh(array), sharding_of(array)
    if mesh is None or sharding is None:
        return jnp.take(array, index, axis=axis)
    spec = [*sharding.spec, *[None] * (array.ndim - len(sharding.spec))]
    along = () if spec[axis] is None else (spec[axis],) if isinstance(spec[axis], str) else tuple(spec[axis])
    parts, count = parts_along(mesh, along), jnp.shape(index)[0]
    if count % parts:
        message = f"{name}: {count} entries do not divide over the mesh axis {' x '.join(along)}={parts}"
        warnings.warn(f"{message}; every device holds all of them", stacklevel=2)
        spec[axis] = None
    take_along = functools.partial(jnp.take, axis=axis)
    return spread_by_compiler(take_along, PartitionSpec(*spec), array, jnp.asarray(index))


def on_automatic_axes(function: F) -> F:
    """Return the function, which runs under a twin of the current mesh with automatic axes if it has explicit ones.

    Arrays on the mesh, in its arguments and its result, change over with it; they stay where they are.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        leaves = jax.tree.leaves((args, kwargs), is_leaf=_is_leaf)
        arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
        if explicit_mesh(arrays) is None:
            return function(*args, **kwargs)
        meshes = [jax.sharding.get_mesh(), *(getattr(array.sharding, "mesh", None) for array in arrays)]
        mesh = next(each for each in meshes if isinstance(each, Mesh) and AxisType.Explicit in each.axis_types)
        twin = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
        args, kwargs = _moved((args, kwargs), twin)
        with jax.set_mesh(twin):
            result = function(*args, **kwargs)
        return _moved(result, mesh)

    return run  # type: ignore[return-value]


def _moved(tree: Any, mesh: Mesh) -> Any:
    """Return a tree whose arrays on the mesh's devices have this mesh in their sharding; iterators are wrapped."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, Iterator):
            return (_moved(each, mesh) for each in leaf)
        sharding = leaf.sharding if isinstance(leaf, jax.Array) else None
        if not isinstance(sharding, NamedSharding) or sharding.mesh.size != mesh.size:
            return leaf
        return jax.device_put(leaf, NamedSharding(mesh, sharding.spec))

    return jax.tree.map(move, tree, is_leaf=_is_leaf)


def _is_leaf(entry: Any) -> bool:
    """Return whether a tree ends here; JAX asks to say so of iterables that are no trees."""
    return isinstance(entry, Iterable) and not isinstance(entry, dict | list | tuple | nnx.Module | nnx.Variable)


Prng = Literal["threefry2x32", "rbg"]
"""A generator, by JAX's name of its implementation.

`threefry2x32` hashes the number of every entry: an entry's bits depend on nothing else, so a step drops the same on
every mesh. A TPU computes each hash in some hundred instructions of its vector unit, and its compiler takes long over
them. `rbg` is the device's own generator (XLA's RngBitGenerator): cheap, but the dropped entries depend on the mesh and
on the kind of device.
"""


def step_key(seed: int | jax.Array, step: jax.Array | int, prng: Prng) -> jax.Array:
    """The key of a step's dropout, from the seed and the step alone."""
    return jax.random.fold_in(jax.random.key(seed, impl=prng), step)


def dropped(inputs: jax.Array, key: jax.Array, rate: jax.typing.ArrayLike, shape: tuple[int, ...]) -> jax.Array:
    """Return the inputs with entries zeroed with probability `rate`, and the others scaled by 1 / (1 - rate).

    The draws have a shape that broadcasts to the inputs', see `kept`.
    """
    scaled = inputs / jnp.asarray(1.0 - rate, inputs.dtype)
    return jnp.where(kept(key, rate, shape), scaled, jnp.zeros((), inputs.dtype))


def kept(key: jax.Array, rate: jax.typing.ArrayLike, shape: tuple[int, ...]) -> jax.Array:
    """True with probability 1 - `rate` for each entry of an array `[batch, ...]`, all independent.

    XLA splits `threefry2x32` as it splits the array. The device's own generator (`rbg`) cannot be split: every device
    would draw for the whole batch. So each draws for its own examples alone, from a separate key.
    """
    if str(jax.random.key_impl(key)) == "threefry2x32":
        return jax.random.bernoulli(key, 1.0 - rate, shape)
    mesh = current_mesh(*SPREADING)
    parts = 1 if mesh is None else parts_along(mesh)

    def bernoulli(key: jax.Array, rate: jax.typing.ArrayLike, batch: int = shape[0] // parts) -> jax.Array:
        """A generator's bits go through memory, and 16 are half of 32: the rate holds to one part in 65,536."""
        bits = jax.random.bits(key, (batch, *shape[1:]), jnp.uint16)
        return bits.astype(jnp.float32) < jnp.asarray(1.0 - rate, jnp.float32) * 2.0**16

    if mesh is None or parts == 1 or shape[0] % parts:
        return bernoulli(key, rate, shape[0])
    axes, whole = axes_of(mesh, BATCH_AXES), PartitionSpec()

    def part(key: jax.Array, rate: jax.typing.ArrayLike) -> jax.Array:
        return bernoulli(jax.random.fold_in(key, jax.lax.axis_index(axes)), rate)

    spread = jax.shard_map(part, mesh=mesh, in_specs=(whole, whole), out_specs=PartitionSpec(axes), check_vma=False)
    return spread(key, rate)
