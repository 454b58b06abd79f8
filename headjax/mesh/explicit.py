"""Meshes with explicit axes, which `jax.make_mesh` makes: within headjax the compiler spreads arrays, as on other ones.

Types of arrays name their placement there, and each operation has to say where its result lies when its operands leave
that open. Inside `spread_by_compiler` they need not: there the axes are automatic, and only results are typed.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

Result = TypeVar("Result")
F = TypeVar("F", bound=Callable[..., Any])


def explicit_mesh(*trees: Any) -> AbstractMesh | None:
    """Return the mesh with explicit axes that is set, or on which an array of the trees lies; None without one."""
    mesh = jax.sharding.get_abstract_mesh()
    for leaf in jax.tree.leaves(trees) if mesh.empty else ():
        own = jax.typeof(leaf).sharding if isinstance(leaf, jax.Array) else None
        if isinstance(own, NamedSharding) and AxisType.Explicit in own.mesh.axis_types:
            mesh = own.mesh.abstract_mesh
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

    def place(given: Any) -> NamedSharding:
        if isinstance(given, PartitionSpec):
            return NamedSharding(mesh, given)
        own = sharding_of(given)
        return NamedSharding(mesh, PartitionSpec() if own is None else own.spec)

    places = jax.tree.map(place, like, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
    computed: Result = jax.sharding.auto_axes(function, out_sharding=places)(*args)
    return computed


def spread_by_example(function: Callable[..., Result], examples: jax.Array, *args: Any) -> Result:
    """Return `function(*args)` likewise: results with as many rows as `examples` lie as these along that axis."""
    own = sharding_of(examples)
    rows = PartitionSpec() if own is None else PartitionSpec(*own.spec[:1])

    def place(shape: jax.ShapeDtypeStruct) -> PartitionSpec:
        return rows if shape.shape[:1] == examples.shape[:1] else PartitionSpec()

    shapes = jax.eval_shape(functools.partial(spread_by_compiler, function, PartitionSpec()), *args)
    return spread_by_compiler(function, jax.tree.map(place, shapes), *args)


def placed_as(array: jax.Array, like: jax.Array, axes: int) -> jax.Array:
    """Return an array that lies along its first axes, where they are as long, as `like` does; whole along others."""
    mesh = explicit_mesh(like)
    own = None if mesh is None else sharding_of(like)
    if own is None:
        return array
    spec = [*own.spec, *[None] * (like.ndim - len(own.spec))][:axes]
    kept = [name if array.shape[axis] == like.shape[axis] else None for axis, name in enumerate(spec)]
    return jax.sharding.reshard(array, NamedSharding(own.mesh, PartitionSpec(*kept)))


def take(array: jax.Array, index: jax.typing.ArrayLike, axis: int, name: str) -> jax.Array:
    """Return entries along an axis, on the devices where the array lies; `name` says in a warning what they are.

    On a mesh with explicit axes an axis whose new length does not divide over its devices becomes whole on all of them,
    with a warning.
    """
    mesh, own = explicit_mesh(array), sharding_of(array)
    if mesh is None or own is None:
        return jax.numpy.take(array, index, axis=axis)
    spec = [*own.spec, *[None] * (array.ndim - len(own.spec))]
    along = () if spec[axis] is None else (spec[axis],) if isinstance(spec[axis], str) else tuple(spec[axis])
    parts = int(np.prod([mesh.shape[part] for part in along], dtype=int))
    count = jax.numpy.shape(index)[0]
    if count % parts:
        said = f"{name}: {count} entries do not divide over the mesh axis {' x '.join(along)}={parts}"
        warnings.warn(f"{said}; every device holds all of them", stacklevel=2)
        spec[axis] = None
    taken = functools.partial(jax.numpy.take, axis=axis)
    return spread_by_compiler(taken, PartitionSpec(*spec), array, jax.numpy.asarray(index))


def on_automatic_axes(function: F) -> F:
    """Return the function, which runs under a twin of the current mesh with automatic axes if it has explicit ones.

    Arrays on the mesh, in its arguments and its result, change over with it; they stay where they are.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        mesh = _concrete_mesh(args, kwargs)
        if mesh is None:
            return function(*args, **kwargs)
        twin = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
        args, kwargs = _moved((args, kwargs), twin)
        with jax.set_mesh(twin):
            result = function(*args, **kwargs)
        return _moved(result, mesh)

    return run  # type: ignore[return-value]


def _concrete_mesh(*trees: Any) -> Mesh | None:
    """Return the explicit mesh that is set, or on which an array lies, with its devices; None without one."""
    arrays = [leaf for leaf in jax.tree.leaves(trees, is_leaf=_is_leaf) if isinstance(leaf, jax.Array)]
    if explicit_mesh(arrays) is None:
        return None
    if not jax.sharding.get_mesh().empty:
        return jax.sharding.get_mesh()
    places = [array.sharding for array in arrays]
    meshes = [place.mesh for place in places if isinstance(place, NamedSharding)]
    return next(mesh for mesh in meshes if isinstance(mesh, Mesh) and AxisType.Explicit in mesh.axis_types)


def _moved(tree: Any, mesh: Mesh) -> Any:
    """Return a tree whose arrays on the mesh's devices belong to this mesh; what iterators yield follows."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, Iterator):
            return (_moved(each, mesh) for each in leaf)
        own = leaf.sharding if isinstance(leaf, jax.Array) else None
        if not isinstance(own, NamedSharding) or own.mesh.size != mesh.size:
            return leaf
        return jax.device_put(leaf, NamedSharding(mesh, own.spec))

    return jax.tree.map(move, tree, is_leaf=_is_leaf)


def _is_leaf(entry: Any) -> bool:
    """Return whether a tree ends here; JAX asks to say so of iterables that are no trees."""
    return isinstance(entry, Iterable) and not isinstance(entry, dict | list | tuple | nnx.Module | nnx.Variable)
