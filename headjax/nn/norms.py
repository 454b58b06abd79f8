"""Normalisations, computed in float32, and the residual connections around sub-layers."""

from __future__ import annotations

import abc
import dataclasses
import functools
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.core.fields import Checked, NotNegative
from headjax.core.modules import bind
from headjax.core.serialize import kind
from headjax.core.tensors import Constant, Ones, bias_weight, weight


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def standardised(x: jax.Array, epsilon: float) -> jax.Array:
    """(x - mean) / sqrt(variance + epsilon) over the last axis, with a derivative in closed form."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + epsilon)


@standardised.defjvp
def _standardised_jvp(
    epsilon: float, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Tangent: d n = (d x - mean(d x) - n mean(n d x)) / sqrt(variance + epsilon)."""
    ((x,), (change,)) = primals, tangents
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    rate = jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + epsilon)
    normal = centred * rate
    shift = jnp.mean(change, axis=-1, keepdims=True)
    stretch = jnp.mean(normal * change, axis=-1, keepdims=True)
    return normal, rate * (change - shift - normal * stretch)


@dataclasses.dataclass(frozen=True)
class Norm(Checked, abc.ABC):
    """A normalisation over the last axis: gamma * unit(x) + beta.

    Attributes:
        epsilon: added to the variance.
    """

    offset: ClassVar[float] = 0.0
    """Difference of gamma and the stored weight."""

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
        normal = self.config.unit(inputs.astype(jnp.float32), self.config.epsilon)
        row = (1,) * (inputs.ndim - 1) + self.scale.shape
        if self.config.offset:  # added in float32, as bfloat16 would round the sum
            gain = self.scale.astype(jnp.float32).reshape(row) + self.config.offset
            return (normal * gain).astype(inputs.dtype)
        scaled = normal.astype(inputs.dtype) * self.scale.reshape(row)
        return scaled if self.bias is None else scaled + self.bias.reshape(row)

    def gain(self) -> jax.Array:
        return self.scale[...] + self.config.offset if self.config.offset else self.scale[...]

    def holding(self, gain: jax.Array, bias: jax.Array | None) -> Normalisation:
        arrays = {"scale": gain - self.config.offset} | ({} if bias is None else {"bias": bias})
        norm: Normalisation = bind(self.config.module(gain.shape[0]), arrays)
        return norm

    def scaled(self, factor: jax.Array | float) -> Normalisation:
        """Return a norm whose outputs are this one's times `factor`, a number or `[width]`."""
        return self.holding(self.gain() * factor, None if self.bias is None else self.bias[...] * factor)


def small_norm(norm: Norm | None, size: int) -> Normalisation | None:
    """Return the module of a norm of vectors smaller than the stream, whose weights are not sharded; None of None."""
    return None if norm is None else norm.module(size, None)


ResidualKind = Literal[
    "post_norm",
    "scaled_post_norm",
    "constant_post_norm",
    "pre_norm",
    "scaled_pre_norm",
    "parallel_norm",
    "sandwich_norm",
]

BEFORE = ("pre_norm", "scaled_pre_norm", "parallel_norm", "sandwich_norm")
"""Kinds that normalise what a sub-layer reads, so that the stream itself is normalised once, at the end of a stack."""


class Residual(nnx.Module):
    """A residual connection around a sub-layer f.

        post_norm           LN(x + f(x))              Vaswani et al. 2017; BERT
        scaled_post_norm    LN(omega * x + f(x))      Admin (Liu et al. 2020, section 4): a learned vector omega
        constant_post_norm  LN(alpha x + f(x))        DeepNorm (Wang et al. 2022, section 3): a constant alpha
        pre_norm            x + f(LN(x))              GPT-2, ViT
        scaled_pre_norm     x + lambda * f(LN(x))     LayerScale (Touvron et al. 2021, CaiT), a learned vector; DINOv2
        parallel_norm       x + f(LN(x)) + g(LN(x))   Wang and Komatsuzaki 2021 (GPT-J); GPT-NeoX
        sandwich_norm       x + LN'(f(LN(x)))         Ding et al. 2021; Gemma 2 and 3

    In a parallel layer every sub-layer, f and g with norms of their own, reads the stream that enters the layer.
    Omega and lambda start as ones; `headjax.initialization` sets omega.
    """

    def __init__(self, kind: ResidualKind, norm: Norm | None, width: int, alpha: float = 1.0) -> None:
        self.kind = kind
        self.norm: Any = None if norm is None else norm.module(width)
        self.after = norm.module(width) if norm is not None and kind == "sandwich_norm" else None  # LN'
        scaled = kind == "scaled_post_norm"
        vector = functools.partial(weight, (width,), ("embed",), Ones, decay=False)
        self.shortcut: nnx.Param[Any] | float = vector() if scaled else alpha  # omega or alpha, multiplies x
        self.branch = vector() if kind == "scaled_pre_norm" else None  # lambda

    def enter(self, x: jax.Array) -> jax.Array:
        """Return f's input from the stream `[batch, length, width]`."""
        return self.norm(x) if self.kind in BEFORE and self.norm is not None else x

    def join(self, x: jax.Array, outputs: jax.Array) -> jax.Array:
        """Return the stream after f, from x and the outputs of f, `[batch, length, width]` each."""
        if self.after is not None:
            return x + self.after(outputs)
        if isinstance(self.shortcut, nnx.Param):
            x = self.shortcut[None, None, :] * x
        elif self.shortcut != 1.0:
            x = self.shortcut * x
        if self.branch is not None:
            outputs = self.branch[None, None, :] * outputs
        return x + outputs if self.kind in BEFORE else self.norm(x + outputs)

    def factors(self) -> tuple[jax.Array | float, jax.Array | float]:
        """Return (a, b) of the sum a x + b f that the stream becomes, before any norm: numbers or vectors `[width]`."""
        if self.after is not None:
            return 0.0, 1.0  # the norm behind f reads f alone
        shortcut = self.shortcut[...] if isinstance(self.shortcut, nnx.Param) else self.shortcut
        return shortcut, 1.0 if self.branch is None else self.branch[...]
