"""Normalisations of the residual stream, of latents and of single heads, computed in float32."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from headjax.core.derivatives import standardised
from headjax.core.fields import NotNegative
from headjax.core.modules import Spec, declared
from headjax.core.serialize import kind
from headjax.core.tensors import Ones, Params, Tensors, Zeros, weight, with_axes


@dataclasses.dataclass(frozen=True)
class Norm(Spec, abc.ABC):
    """A normalisation over the last axis.

    Attributes:
        epsilon: added to the variance.
    """

    epsilon: NotNegative = 1e-5

    @abc.abstractmethod
    def tensors(self, width: int) -> Tensors:
        """The declared parameters."""

    @abc.abstractmethod
    def __call__(self, params: Params, inputs: jax.Array) -> jax.Array:
        """The normalised `[..., width]`."""

    def gain(self, params: Params) -> jax.Array:
        """Return gamma `[width]`, the factor of each normalised feature."""
        return params["scale"]

    def scale(self, gain: jax.Array) -> jax.Array:
        """Return the parameter `scale` of this gamma, the inverse of `gain`."""
        return gain

    def scaled(self, params: Params, factor: jax.Array | float) -> Params:
        """Return the parameters of a norm whose outputs are this one's times `factor`, a number or `[width]`."""
        scaled = {name: array * factor for name, array in params.items()}
        return scaled | {"scale": self.scale(self.gain(params) * factor)}


@kind("layer_norm")
@dataclasses.dataclass(frozen=True)
class LayerNorm(Norm):
    """gamma * (x - mean) / sqrt(variance + epsilon) + beta (Ba et al. 2016)."""

    def tensors(self, width: int) -> Tensors:
        return {
            "scale": weight((width,), ("embed",), Ones, decay=False),
            "bias": weight((width,), ("embed",), Zeros(), decay=False),
        }

    def __call__(self, params: Params, inputs: jax.Array) -> jax.Array:
        normal = standardised(inputs.astype(jnp.float32), self.epsilon).astype(inputs.dtype)
        return normal * _row(params["scale"], normal) + _row(params["bias"], normal)


@kind("rms_norm")
@dataclasses.dataclass(frozen=True)
class RMSNorm(Norm):
    """gamma * x / sqrt(mean(x^2) + epsilon) (Zhang and Sennrich 2019)."""

    def tensors(self, width: int) -> Tensors:
        return {"scale": weight((width,), ("embed",), Ones, decay=False)}

    def __call__(self, params: Params, inputs: jax.Array) -> jax.Array:
        x = inputs.astype(jnp.float32)
        square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
        normal = (x * jax.lax.rsqrt(square + self.epsilon)).astype(inputs.dtype)
        return normal * _row(params["scale"], normal)


@kind("offset_rms_norm")
@dataclasses.dataclass(frozen=True)
class OffsetRMSNorm(RMSNorm):
    """(1 + w) * x / sqrt(mean(x^2) + epsilon), with a weight w that starts as zeros (Gemma).

    The product is rounded to the inputs' type once, at its end.
    """

    def tensors(self, width: int) -> Tensors:
        return {"scale": weight((width,), ("embed",), Zeros(), decay=False)}

    def __call__(self, params: Params, inputs: jax.Array) -> jax.Array:
        gain = {"scale": self.gain(params).astype(jnp.float32)}
        return super().__call__(gain, inputs.astype(jnp.float32)).astype(inputs.dtype)

    def gain(self, params: Params) -> jax.Array:
        return 1.0 + params["scale"]

    def scale(self, gain: jax.Array) -> jax.Array:
        return gain - 1.0


def _row(vector: jax.Array, like: jax.Array) -> jax.Array:
    return vector.reshape((1,) * (like.ndim - 1) + vector.shape)


def small_norm(norm: Norm | None, size: int) -> Any:
    """Return the module of a norm of vectors smaller than the stream (a head, a latent), whose weights are not sharded.

    None stays None.
    """
    if norm is None:
        return None
    module = norm.module(size)
    for name, one in declared(module).items():
        setattr(module, name, with_axes(one, (None,)))
    return module
