"""Declared parameters, from which initialisation, sharding, restoring, counting and the slicing of heads derive."""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict

from headjax.core.errors import ParameterError
from headjax.core.fields import Checked, NotNegative, Size
from headjax.core.serialize import kind

Params = dict[str, Any]
"""Nested dict of arrays."""


RULES: Mapping[str, str | None] = {
    "layers": None,
    "embed": "fsdp",
    "heads": "model",
    "head_dim": None,
    "kv_heads": None,
    "logit_heads": None,
    "latent": None,
    "shared_dim": None,
    "feed_forward": "model",
    "vocabulary": "model",
}
"""Mesh axis of every logical axis; None, or an axis that the mesh does not have, is replicated."""


def weight(
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    init: Initializer | None = None,
    *,
    inputs: tuple[int, ...] = (0,),
    decay: bool = True,
    stacked: int = 0,
    drawn_as_module: bool = False,
) -> nnx.Param[Any]:
    """Declare a parameter, whose randomness comes from its path, or from its module's (`drawn_as_module`)."""
    if len(shape) != len(axes):
        raise ParameterError(f"tensor of shape {shape} declares {len(axes)} axes {axes}")
    return nnx.Param(
        jax.ShapeDtypeStruct(shape, jnp.float32),
        out_sharding=axes,
        sharding_rules=tuple(RULES.items()),
        eager_sharding=False,  # Flax would otherwise place every new value at once, and ask for a mesh
        init=init,
        inputs=inputs,
        decay=decay,
        stacked=stacked,
        drawn_as_module=drawn_as_module,
    )


def redeclared(param: nnx.Param[Any], shape: tuple[int, ...], axes: tuple[str | None, ...], layers: int = 0) -> Any:
    """Declare the same parameter with another shape and axes, of which `layers` more are axes of layers in front."""
    inputs, stacked = tuple(i + layers for i in param.inputs), param.stacked + layers
    same = {"decay": param.decay, "drawn_as_module": param.drawn_as_module}
    return weight(shape, axes, param.init, inputs=inputs, stacked=stacked, **same)


def fans(weight: nnx.Param[Any], shape: tuple[int, ...]) -> tuple[int, int]:
    """Return how many inputs are summed into one output, and outputs that one input feeds, of a weight of a shape."""
    inputs = math.prod(shape[i] for i in weight.inputs if i < len(shape))  # a scalar sums nothing
    return inputs, math.prod(shape[weight.stacked :]) // max(inputs, 1)


def stack_weight(param: nnx.Param[Any], count: int) -> nnx.Param[Any]:
    """Declare the parameter of `count` equal layers, stacked along a new leading axis `layers`."""
    return redeclared(param, (count, *param.shape), ("layers", *param.out_sharding), 1)


def one_layer(stack: nnx.Param[Any]) -> nnx.Param[Any]:
    """Declare the parameter of a single layer: invert `stack_weight`."""
    return redeclared(stack, stack.shape[1:], stack.out_sharding[1:], -1)


class Initializer(Checked, abc.ABC):
    """Draws the first value of a declared parameter."""

    @abc.abstractmethod
    def __call__(self, key: jax.Array, weight: nnx.Param[Any], dtype: Any) -> jax.Array:
        """An array of the parameter's shape."""


@kind("zeros")
@dataclasses.dataclass(frozen=True)
class Zeros(Initializer):
    """All zeros."""

    def __call__(self, key: jax.Array, weight: nnx.Param[Any], dtype: Any) -> jax.Array:
        return jnp.zeros(weight.shape, dtype)


@kind("constant")
@dataclasses.dataclass(frozen=True)
class Constant(Initializer):
    """One value everywhere.

    Attributes:
        value: the value.
    """

    value: float

    def __call__(self, key: jax.Array, weight: nnx.Param[Any], dtype: Any) -> jax.Array:
        return jnp.full(weight.shape, self.value, dtype)


Ones = Constant(1.0)


def drawn(sample: Callable[..., jax.Array], key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Return `sample(key, shape, dtype)`, drawn as a vector, which compiles faster, unless several devices share it.

    An entry's number depends on its place in row-major order alone, so both ways draw the same.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty and mesh.size > 1:
        return sample(key, shape, dtype)
    return sample(key, (math.prod(shape),), dtype).reshape(shape)


@kind("normal")
@dataclasses.dataclass(frozen=True)
class Normal(Initializer):
    """Gaussian of mean zero.

    Attributes:
        stddev: its standard deviation.
    """

    stddev: NotNegative = 0.02

    def __call__(self, key: jax.Array, weight: nnx.Param[Any], dtype: Any) -> jax.Array:
        return self.stddev * drawn(jax.random.normal, key, weight.shape, dtype)


@kind("truncated_normal")
@dataclasses.dataclass(frozen=True)
class TruncatedNormal(Initializer):
    """Gaussian of mean zero, cut at two standard deviations: BERT's initialiser.

    Attributes:
        stddev: standard deviation of the Gaussian before the cut.
    """

    stddev: NotNegative = 0.02

    def __call__(self, key: jax.Array, weight: nnx.Param[Any], dtype: Any) -> jax.Array:
        sample = lambda key, shape, dtype: jax.random.truncated_normal(key, -2.0, 2.0, shape, dtype)  # noqa: E731
        return self.stddev * drawn(sample, key, weight.shape, dtype)


@kind("xavier")
@dataclasses.dataclass(frozen=True)
class Xavier(Initializer):
    """Uniform in +-gain * sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010).

    Attributes:
        gain: factor of the limits.
    """

    gain: NotNegative = 1.0

    def __call__(self, key: jax.Array, weight: nnx.Param[Any], dtype: Any) -> jax.Array:
        limit = self.gain * math.sqrt(6.0 / max(sum(fans(weight, self.whole(weight))), 1))
        return drawn(functools.partial(jax.random.uniform, minval=-limit, maxval=limit), key, weight.shape, dtype)

    def whole(self, weight: nnx.Param[Any]) -> tuple[int, ...]:
        """Return the shape of the layer's weight that this one is a part of."""
        return tuple(weight.shape)


@kind("sliced_xavier")
@dataclasses.dataclass(frozen=True)
class SlicedXavier(Xavier):
    """Xavier as if heads and feed-forward units were a slice of a layer with `slices` times as many.

    So a layer taken apart into single-head layers can start like a part of itself.

    Attributes:
        slices: how many such layers the large one was taken apart into.
    """

    slices: Size = 1

    def whole(self, weight: nnx.Param[Any]) -> tuple[int, ...]:
        cut = next((i for i, axis in enumerate(weight.out_sharding) if axis in ("heads", "feed_forward")), None)
        return tuple(size * self.slices if i == cut else size for i, size in enumerate(weight.shape))


@kind("fan_in")
@dataclasses.dataclass(frozen=True)
class FanIn(Initializer):
    """Gaussian of standard deviation gain / sqrt(fan_in): keeps the variance of a unit-variance input.

    Attributes:
        gain: factor of the standard deviation.
    """

    side: ClassVar[int] = 0
    """Index of the entry of `fans` that divides the variance."""

    gain: NotNegative = 1.0

    def __call__(self, key: jax.Array, weight: nnx.Param[Any], dtype: Any) -> jax.Array:
        fan = fans(weight, weight.shape)[self.side]
        return self.gain / math.sqrt(max(fan, 1)) * drawn(jax.random.normal, key, weight.shape, dtype)


@kind("fan_out")
@dataclasses.dataclass(frozen=True)
class FanOut(FanIn):
    """Gaussian of standard deviation gain / sqrt(fan_out): for embeddings that sqrt(width) multiplies."""

    side = 1


Tensors = dict[str, Any]
"""Nested dict of declared `nnx.Param`s, shaped like the `Params` that it declares."""


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A nested dict as one dict from `a/b/c` paths to leaves, in the nesting's own order."""
    flat: dict[str, Any] = flatten_dict(tree, sep="/")
    return flat


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inverse of `flatten`."""
    tree: dict[str, Any] = unflatten_dict(flat, sep="/")
    return tree


def map_tensors(function: Callable[[str, nnx.Param[Any]], Any], tensors: Tensors, prefix: str = "") -> dict[str, Any]:
    """`function(path, tensor)` for every declared tensor, in the same nesting (groups without tensors included)."""
    return {
        name: map_tensors(function, entry, f"{prefix}{name}/")
        if isinstance(entry, dict)
        else function(f"{prefix}{name}", entry)
        for name, entry in tensors.items()
    }


def in_host_memory(tree: Any) -> bool:
    """Return whether NumPy reads all arrays of a tree where they lie, and arrays made of them lie there again.

    What is cut or put together so needs no compiled program for each shape.
    """
    if not jax.sharding.get_abstract_mesh().empty:
        return False
    here = {jax.local_devices()[0]}
    return next(iter(here)).platform == "cpu" and all(
        isinstance(array, np.ndarray)
        or (
            (isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer))
            and isinstance(array.dtype, np.dtype)  # no key
            and array.devices() == here
        )
        for array in jax.tree.leaves(tree)
    )


def count(tensors: Tensors) -> int:
    """Number of parameters declared."""
    return sum(tensor.size for tensor in flatten(tensors).values())


def abstract(tensors: Tensors) -> dict[str, Any]:
    """The parameters as shapes and types only."""
    return map_tensors(lambda _, tensor: jax.ShapeDtypeStruct(tensor.shape, jnp.float32), tensors)


def initialize(tensors: Tensors, key: jax.Array, default: Initializer, dtype: Any = jnp.float32) -> Params:
    """Draw every declared parameter by its own path, which has a layer's number, not its group's."""

    def draw(path: str, tensor: nnx.Param[Any]) -> jax.Array:
        init, group = tensor.init or default, _GROUP.search(path)
        path = path.rpartition("/")[0] if tensor.drawn_as_module else path
        first = int(group[1]) if group else 0
        layers = range(first, first + (tensor.shape[0] if tensor.stacked else 1))
        paths = [_GROUP.sub(f"layers_{layer}", path) for layer in layers]
        numbers = np.array([zlib.crc32(name.encode()) for name in paths], np.uint32)
        if not tensor.stacked:
            return init(jax.random.fold_in(key, numbers[0]), tensor, dtype)
        keys = jax.vmap(functools.partial(jax.random.fold_in, key))(numbers)
        return jax.vmap(lambda key: init(key, one_layer(tensor), dtype))(keys)

    return map_tensors(draw, tensors)


_GROUP = re.compile(r"\blayers_([0-9]+)_[0-9]+\b")
"""The part of a path that names a group of layers, from the first to the last."""


def bias_weight(biased: bool, shape: tuple[int, ...], axes: tuple[str | None, ...]) -> nnx.Param[Any] | None:
    """Declare a bias, which begins as zeros; None where the layer has none."""
    return weight(shape, axes, Zeros(), decay=False) if biased else None


def check(tensors: Tensors, params: Mapping[str, Any]) -> None:
    """Compares arrays with their declarations."""
    declared, arrays = flatten(tensors), flatten(params)
    for path, tensor in declared.items():
        if path not in arrays:
            raise ParameterError(f"{path}: missing; the config declares shape {list(tensor.shape)}")
        if arrays[path].shape != tensor.shape:
            shape = list(arrays[path].shape)
            raise ParameterError(f"{path}: has shape {shape}, the config declares {list(tensor.shape)}")
    for path in arrays:
        if path not in declared:
            raise ParameterError(f"{path}: not declared by the config")


def require_finite(params: Mapping[str, Any]) -> None:
    """Raise `ParameterError` naming the first array that holds NaN or an infinity."""
    for path, array in flatten(params).items():
        if not np.isfinite(np.asarray(array)).all():
            raise ParameterError(f"{path}: holds values that are NaN or infinite")
