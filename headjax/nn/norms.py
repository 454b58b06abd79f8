"""Normalisations of the residual stream, of latents and of single heads, computed in float32."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.core.derivatives import standardised
from headjax.core.fields import NotNegative
from headjax.core.modules import Spec
from headjax.core.serialize import kind
from headjax.core.tensors import Initializer, Ones, Zeros, weight


@dataclasses.dataclass(frozen=True)
class Norm(Spec, abc.ABC):
    """A normalisation over the last axis.

    Attributes:
        epsilon: added to the variance.
    """

    epsilon: NotNegative = 1e-5

    @abc.abstractmethod
    def module(self, width: int, axis: str | None = "embed") -> Normalisation:
        """Return the module for vectors of a size, of which `axis` is the logical axis."""


class Normalisation(nnx.Module, abc.ABC):
    """Base of the modules of norms."""

    start: Initializer = Ones
    bias: nnx.Param[Any] | None = None

    def __init__(self, config: Norm, width: int, axis: str | None) -> None:
        self.config = config
        self.scale = weight((width,), (axis,), self.start, decay=False)

    @abc.abstractmethod
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Return the normalised inputs `[..., width]`."""

    def gain(self) -> jax.Array:
        """Return gamma `[width]`."""
        return self.scale[...]

    def holding(self, gain: jax.Array, bias: jax.Array | None) -> Normalisation:
        """Return the norm with this gamma and this beta."""
        arrays = {"scale": gain} if bias is None else {"scale": gain, "bias": bias}
        found: Normalisation = self.config.bind(arrays, gain.shape[0])
        return found

    def scaled(self, factor: jax.Array | float) -> Normalisation:
        """Return a norm whose outputs are this one's times `factor`, a number or `[width]`."""
        return self.holding(self.gain() * factor, None if self.bias is None else self.bias[...] * factor)


@kind("layer_norm")
@dataclasses.dataclass(frozen=True)
class LayerNorm(Norm):
    """gamma * (x - mean) / sqrt(variance + epsilon) + beta (Ba et al. 2016).

    Attributes:
        bias: whether there is a beta.
    """

    bias: bool = True

    def module(self, width: int, axis: str | None = "embed") -> LayerNormalisation:
        return LayerNormalisation(self, width, axis)


class LayerNormalisation(Normalisation):
    """The module of `LayerNorm`."""

    def __init__(self, config: LayerNorm, width: int, axis: str | None) -> None:
        super().__init__(config, width, axis)
        self.bias = weight((width,), (axis,), Zeros(), decay=False) if config.bias else None

    def __call__(self, inputs: jax.Array) -> jax.Array:
        normal = standardised(inputs.astype(jnp.float32), self.config.epsilon).astype(inputs.dtype)  # [..., width]
        scaled = normal * _row(self.scale[...], normal)
        return scaled if self.bias is None else scaled + _row(self.bias[...], normal)


@kind("rms_norm")
@dataclasses.dataclass(frozen=True)
class RMSNorm(Norm):
    """gamma * x / sqrt(mean(x^2) + epsilon) (Zhang and Sennrich 2019)."""

    def module(self, width: int, axis: str | None = "embed") -> RMSNormalisation:
        return RMSNormalisation(self, width, axis)


class RMSNormalisation(Normalisation):
    """The module of `RMSNorm`."""

    def __call__(self, inputs: jax.Array) -> jax.Array:
        normal = self.unit(inputs)  # [..., width]
        return normal * _row(self.scale[...], normal)

    def unit(self, inputs: jax.Array) -> jax.Array:
        """Return inputs `[..., width]` divided by their root mean square."""
        x = inputs.astype(jnp.float32)
        square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)  # [..., 1]
        return (x * jax.lax.rsqrt(square + self.config.epsilon)).astype(inputs.dtype)


@kind("offset_rms_norm")
@dataclasses.dataclass(frozen=True)
class OffsetRMSNorm(RMSNorm):
    """(1 + w) * x / sqrt(mean(x^2) + epsilon), with a weight w that starts as zeros (Gemma).

    The product is rounded to the inputs' type once, at its end.
    """

    def module(self, width: int, axis: str | None = "embed") -> OffsetRMSNormalisation:
        return OffsetRMSNormalisation(self, width, axis)


class OffsetRMSNormalisation(RMSNormalisation):
    """The module of `OffsetRMSNorm`; `scale` is w."""

    start = Zeros()

    def __call__(self, inputs: jax.Array) -> jax.Array:
        normal = self.unit(inputs.astype(jnp.float32))  # [..., width]
        return (normal * _row(self.gain().astype(jnp.float32), normal)).astype(inputs.dtype)

    def gain(self) -> jax.Array:
        return 1.0 + self.scale[...]

    def holding(self, gain: jax.Array, bias: jax.Array | None) -> Normalisation:
        return super().holding(gain - 1.0, bias)


def _row(vector: jax.Array, like: jax.Array) -> jax.Array:
    return vector.reshape((1,) * (like.ndim - 1) + vector.shape)


def small_norm(norm: Norm | None, size: int) -> Normalisation | None:
    """Return the module of a norm of vectors smaller than the stream (a head, a latent), whose weights are not sharded.

    None stays None.
    """
    return None if norm is None else norm.module(size, None)
