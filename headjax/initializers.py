"""Initialisers as values: they serialise with the config and read fans off the declared tensor."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from headjax.errors import require_positive
from headjax.serialize import kind

if TYPE_CHECKING:
    from headjax.tensors import Tensor


class Initializer(abc.ABC):
    """Draws the first value of a declared tensor."""

    @abc.abstractmethod
    def __call__(self, key: jax.Array, tensor: Tensor, dtype: Any) -> jax.Array:
        """An array of the tensor's shape."""


@kind("zeros")
@dataclasses.dataclass(frozen=True)
class Zeros(Initializer):
    """All zeros."""

    def __call__(self, key: jax.Array, tensor: Tensor, dtype: Any) -> jax.Array:
        return jnp.zeros(tensor.shape, dtype)


@kind("constant")
@dataclasses.dataclass(frozen=True)
class Constant(Initializer):
    """One value everywhere."""

    value: float

    def __call__(self, key: jax.Array, tensor: Tensor, dtype: Any) -> jax.Array:
        return jnp.full(tensor.shape, self.value, dtype)


Ones = Constant(1.0)


@kind("normal")
@dataclasses.dataclass(frozen=True)
class Normal(Initializer):
    """Gaussian of mean zero."""

    stddev: float = 0.02

    def __call__(self, key: jax.Array, tensor: Tensor, dtype: Any) -> jax.Array:
        return self.stddev * jax.random.normal(key, tensor.shape, dtype)


@kind("truncated_normal")
@dataclasses.dataclass(frozen=True)
class TruncatedNormal(Initializer):
    """Gaussian cut at two standard deviations: BERT's initialiser. `stddev` is that of the Gaussian before the cut."""

    stddev: float = 0.02

    def __call__(self, key: jax.Array, tensor: Tensor, dtype: Any) -> jax.Array:
        return self.stddev * jax.random.truncated_normal(key, -2.0, 2.0, tensor.shape, dtype)


@kind("xavier")
@dataclasses.dataclass(frozen=True)
class Xavier(Initializer):
    """Uniform in +-gain * sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010)."""

    gain: float = 1.0

    def __call__(self, key: jax.Array, tensor: Tensor, dtype: Any) -> jax.Array:
        limit = self.gain * math.sqrt(6.0 / max(tensor.fan_in + tensor.fan_out, 1))
        return jax.random.uniform(key, tensor.shape, dtype, -limit, limit)


@kind("sliced_xavier")
@dataclasses.dataclass(frozen=True)
class SlicedXavier(Xavier):
    """Xavier as if heads and feed-forward units were a slice of a layer with `slices` times as many.

    A layer taken apart into single-head layers can start like a part of itself. `xavier` sees the small matrices
    alone, whose fans are smaller, and draws larger weights: by sqrt(2 H / (H + 1)) for one of H heads that together
    are as wide as the stream.

    Attributes:
        slices: how many such layers the large one was taken apart into.
    """

    slices: int = 1

    def __post_init__(self) -> None:
        require_positive(self, "slices")

    def __call__(self, key: jax.Array, tensor: Tensor, dtype: Any) -> jax.Array:
        cut = next((i for i, axis in enumerate(tensor.axes) if axis in ("heads", "feed_forward")), None)
        if cut is None:
            return super().__call__(key, tensor, dtype)
        shape = tuple(size * self.slices if i == cut else size for i, size in enumerate(tensor.shape))
        whole = dataclasses.replace(tensor, shape=shape)
        limit = self.gain * math.sqrt(6.0 / (whole.fan_in + whole.fan_out))
        return jax.random.uniform(key, tensor.shape, dtype, -limit, limit)


@kind("fan_in")
@dataclasses.dataclass(frozen=True)
class FanIn(Initializer):
    """Gaussian of standard deviation gain / sqrt(fan_in): keeps the variance of a unit-variance input."""

    gain: float = 1.0

    def __call__(self, key: jax.Array, tensor: Tensor, dtype: Any) -> jax.Array:
        return self.gain / math.sqrt(max(tensor.fan_in, 1)) * jax.random.normal(key, tensor.shape, dtype)
