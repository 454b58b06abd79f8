"""Deferred arrays: read or computed when they are asked for, so that no two of a model need be in memory together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.errors import ParameterError
from headjax.core.tensors import all_finite


@dataclasses.dataclass(frozen=True, eq=False)
class Deferred:
    """An array that is made at each reading and not kept.

    A deferred array takes the place of an array in `Params` and is a leaf there. NumPy's functions and `jnp.asarray`
    take it and make it; other functions of JAX do not, see `held`.

    Attributes:
        shape: its shape.
        dtype: its type.
        make: reads or computes it.
        order: its place among the arrays of one source, which is read fastest in rising order.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    make: Callable[[], np.ndarray]
    order: int = 0

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes once it is made."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.make()
        return array if dtype is None else array.astype(dtype, copy=False)

    def finite(self, path: str) -> Deferred:
        """Return the array with a check of its values whenever it is made.

        Args:
            path: its name, for the error: `ParameterError` if it holds NaN or an infinity.
        """

        def make() -> np.ndarray:
            array = self.make()
            if not all_finite(array):
                raise ParameterError(f"{path}: holds values that are NaN or infinite")
            return array

        return dataclasses.replace(self, make=make)


def deferred(array: Any) -> Deferred:
    """Return an array as a deferred one, which holds it."""
    if isinstance(array, Deferred):
        return array
    return Deferred(tuple(array.shape), np.dtype(array.dtype), lambda: np.asarray(array))


def any_deferred(tree: Any) -> bool:
    """Return whether a tree of arrays has a deferred one."""
    return any(isinstance(leaf, Deferred) for leaf in jax.tree.leaves(tree))


def held(tree: Any) -> Any:
    """Return a tree of arrays with the deferred ones made, in the order in which their source is read fastest."""
    leaves, structure = jax.tree.flatten(tree)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Deferred)]
    for place in sorted(places, key=lambda place: leaves[place].order):
        leaves[place] = jnp.asarray(leaves[place].make())
    return jax.tree.unflatten(structure, leaves)


def layer_of(array: Any, index: int) -> Any:
    """Return one layer of an array with a leading axis of layers, deferred if the array is."""
    if not isinstance(array, Deferred):
        return jnp.asarray(array)[index]
    return dataclasses.replace(array, shape=array.shape[1:], make=lambda: array.make()[index])


def stacked(layers: Sequence[Any]) -> Any:
    """Return arrays stacked along a new leading axis, deferred if one of them is."""
    if not any_deferred(layers):
        return jnp.stack(layers)
    dtype = np.dtype(jnp.result_type(*(layer.dtype for layer in layers)))
    shape = (len(layers), *layers[0].shape)

    def make() -> np.ndarray:
        array = np.empty(shape, dtype)
        for index, layer in enumerate(layers):
            array[index] = np.asarray(layer)
        return array

    orders = [layer.order for layer in layers if isinstance(layer, Deferred)]
    return Deferred(shape, dtype, make, min(orders))
