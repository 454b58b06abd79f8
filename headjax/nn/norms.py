"""Normalisations of the residual stream, of latents and of single heads, computed in float32."""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.core.derivatives import standardised
from headjax.core.fields import NotNegative
from headjax.core.modules import Spec
from headjax.core.serialize import kind
from headjax.core.tensors import Constant, weight
from headjax.nn.projections import bias_weight


@dataclasses.dataclass(frozen=True)
class Norm(Spec, abc.ABC):
    """A normalisation over the last axis: gamma * unit(x) + beta.

    Attributes:
        epsilon: added to the variance.
    """

    offset: ClassVar[float] = 0.0
    """What gamma is above the stored weight."""

    epsilon: NotNegative = 1e-5

    @staticmethod
    @abc.abstractmethod
    def unit(x: jax.Array, epsilon: float) -> jax.Array:
        """Return vectors `[..., width]` in float32, normalised."""

    def module(self, width: int, axis: str | None = "embed") -> Normalisation:
        """Return the module for vectors of a size, of which `axis` is the logical axis."""
        return Normalisation(self, width, axis)


@kind("layer_norm")
@dataclasses.dataclass(frozen=True)
class LayerNorm(Norm):
    """gamma * (x - mean) / sqrt(variance + epsilon) + beta (Ba et al. 2016).

    Attributes:
        bias: whether there is a beta.
    """

    bias: bool = True

    unit = staticmethod(standardised)


@kind("rms_norm")
@dataclasses.dataclass(frozen=True)
class RMSNorm(Norm):
    """gamma * x / sqrt(mean(x^2) + epsilon) (Zhang and Sennrich 2019)."""

    @staticmethod
    def unit(x: jax.Array, epsilon: float) -> jax.Array:
        return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + epsilon)


@kind("offset_rms_norm")
@dataclasses.dataclass(frozen=True)
class OffsetRMSNorm(RMSNorm):
    """(1 + w) * x / sqrt(mean(x^2) + epsilon), with a weight w that starts as zeros (Gemma).

    The product is rounded to the inputs' type once, at its end.
    """

    offset = 1.0


class Normalisation(nnx.Module):
    """The module of a `Norm`; `scale` is gamma without the offset, `bias` beta or None."""

    def __init__(self, config: Norm, width: int, axis: str | None) -> None:
        self.config = config
        self.scale = weight((width,), (axis,), Constant(1.0 - config.offset), decay=False)
        self.bias = bias_weight(isinstance(config, LayerNorm) and config.bias, (width,), (axis,))

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Return the normalised inputs `[..., width]`."""
        normal = self.config.unit(inputs.astype(jnp.float32), self.config.epsilon)
        row = (1,) * (inputs.ndim - 1) + self.scale.shape
        if self.config.offset:  # added in float32, as bfloat16 would round the sum
            gain = self.scale.astype(jnp.float32).reshape(row) + self.config.offset
            return (normal * gain).astype(inputs.dtype)
        scaled = normal.astype(inputs.dtype) * self.scale.reshape(row)
        return scaled if self.bias is None else scaled + self.bias.reshape(row)

    def gain(self) -> jax.Array:
        """Return gamma `[width]`."""
        return self.scale[...] + self.config.offset if self.config.offset else self.scale[...]

    def holding(self, gain: jax.Array, bias: jax.Array | None) -> Normalisation:
        """Return the norm with this gamma and this beta."""
        arrays = {"scale": gain - self.config.offset} | ({} if bias is None else {"bias": bias})
        found: Normalisation = self.config.bind(arrays, gain.shape[0])
        return found

    def scaled(self, factor: jax.Array | float) -> Normalisation:
        """Return a norm whose outputs are this one's times `factor`, a number or `[width]`."""
        return self.holding(self.gain() * factor, None if self.bias is None else self.bias[...] * factor)


def small_norm(norm: Norm | None, size: int) -> Normalisation | None:
    """Return the module of a norm of vectors smaller than the stream, whose weights are not sharded; None of None."""
    return None if norm is None else norm.module(size, None)
