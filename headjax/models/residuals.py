"""Residual connections: how a sub-layer joins the stream."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import jax
from flax import nnx

from headjax.core.fields import Positive
from headjax.core.modules import Spec
from headjax.core.norms import LayerNorm, Norm, Normalisation
from headjax.core.serialize import kind
from headjax.core.tensors import Constant, Ones, Zeros, weight

Factor = nnx.Param[Any] | float
"""A factor of the sum that the stream becomes: a number, or learned, `[width]` or one for all."""


class Residual(Spec, abc.ABC):
    """A residual connection around a sub-layer f."""

    @property
    @abc.abstractmethod
    def norm(self) -> Norm | None:
        """The normalisation it uses; None if it has none."""

    @abc.abstractmethod
    def module(self, width: int) -> ResidualConnection:
        """Return the module."""


class ResidualConnection(nnx.Module):
    """a x + b f(x), with a the `shortcut` and b the `scale`; the base of those with a normalisation."""

    norm: Any

    def __init__(self, config: Residual, width: int, *, shortcut: Factor = 1.0, scale: Factor = 1.0) -> None:
        self.config = config
        self.norm: Normalisation | None = None if config.norm is None else config.norm.module(width)
        self.shortcut = shortcut
        self.scale = scale

    def enter(self, x: jax.Array) -> jax.Array:
        """Return f's input from the stream `[batch, length, width]`."""
        return x

    def join(self, x: jax.Array, outputs: jax.Array) -> jax.Array:
        """Return the stream after f, from x and the outputs of f, `[batch, length, width]` each."""
        return _times(self.shortcut, x) + _times(self.scale, outputs)

    def factors(self) -> tuple[jax.Array | float, jax.Array | float]:
        """Return (a, b) of the sum a x + b f that the stream becomes, before any norm: numbers or vectors `[width]`."""
        return _value(self.shortcut), _value(self.scale)


@dataclasses.dataclass(frozen=True)
class Normalised(Residual):
    """Base of the residual connections with a normalisation.

    Attributes:
        norm: the normalisation.
    """

    norm: Norm = LayerNorm()


@kind("post_norm")
@dataclasses.dataclass(frozen=True)
class PostNorm(Normalised):
    """LN(x + f(x)) (Vaswani et al. 2017; BERT)."""

    def module(self, width: int) -> PostNormConnection:
        return PostNormConnection(self, width)


@kind("scaled_post_norm")
@dataclasses.dataclass(frozen=True)
class ScaledPostNorm(Normalised):
    """LN(omega * x + f(x)) with a learned vector omega `[width]` on the shortcut: Admin (Liu et al. 2020, section 4).

    Omega starts as ones, which is `PostNorm`; `headjax.initialization` sets it. `headjax.initialization.fold_shortcuts`
    folds it into the weights around it.
    """

    def module(self, width: int) -> PostNormConnection:
        return PostNormConnection(self, width, shortcut=weight((width,), ("embed",), Ones, decay=False))


@kind("constant_post_norm")
@dataclasses.dataclass(frozen=True)
class ConstantPostNorm(Normalised):
    """LN(alpha x + f(x)) with a constant alpha: DeepNorm (Wang et al. 2022, section 3).

    Attributes:
        alpha: multiplies the shortcut; more than one makes updates of deep models small.
    """

    alpha: Positive = 1.0

    def module(self, width: int) -> PostNormConnection:
        return PostNormConnection(self, width, shortcut=self.alpha)


class PostNormConnection(ResidualConnection):
    """LN(a x + f(x))."""

    def join(self, x: jax.Array, outputs: jax.Array) -> jax.Array:
        stream: jax.Array = self.norm(super().join(x, outputs))
        return stream


@kind("pre_norm")
@dataclasses.dataclass(frozen=True)
class PreNorm(Normalised):
    """x + f(LN(x)) (GPT-2, ViT). The stack needs a final norm."""

    def module(self, width: int) -> PreNormConnection:
        return PreNormConnection(self, width)


@kind("scaled_pre_norm")
@dataclasses.dataclass(frozen=True)
class ScaledPreNorm(PreNorm):
    """x + lambda * f(LN(x)) with a learned vector lambda `[width]`: LayerScale (Touvron et al. 2021, equation 4).

    Attributes:
        initial: value of every entry of lambda at the start.
    """

    initial: float = 1e-5

    def module(self, width: int) -> PreNormConnection:
        return PreNormConnection(self, width, scale=weight((width,), ("embed",), Constant(self.initial), decay=False))


class PreNormConnection(ResidualConnection):
    """x + b f(LN(x))."""

    def enter(self, x: jax.Array) -> jax.Array:
        read: jax.Array = self.norm(x)
        return read


@kind("sandwich_norm")
@dataclasses.dataclass(frozen=True)
class SandwichNorm(PreNorm):
    """x + LN'(f(LN(x))) with a norm on both sides of f (Sandwich-LN, Ding et al. 2021; Gemma 2 and 3)."""

    def module(self, width: int) -> SandwichConnection:
        return SandwichConnection(self, width)


class SandwichConnection(PreNormConnection):
    """x + LN'(f(LN(x))), with LN' in `after`."""

    def __init__(self, config: SandwichNorm, width: int) -> None:
        super().__init__(config, width)
        self.after = config.norm.module(width)

    def join(self, x: jax.Array, outputs: jax.Array) -> jax.Array:
        return x + self.after(outputs)

    def factors(self) -> tuple[jax.Array | float, jax.Array | float]:
        """Return (0, 1): the norm behind f reads f alone."""
        return 0.0, 1.0


@kind("no_norm")
@dataclasses.dataclass(frozen=True)
class NoNorm(Residual):
    """x + f(x) (T-Fixup, Huang et al. 2020, removes every normalisation)."""

    @property
    def norm(self) -> None:
        return None

    def module(self, width: int) -> ResidualConnection:
        return ResidualConnection(self, width)


@kind("scaled_no_norm")
@dataclasses.dataclass(frozen=True)
class ScaledNoNorm(NoNorm):
    """x + alpha f(x) with one learned alpha that starts as 0: ReZero (Bachlechner et al. 2020, equation 1).

    A fresh stack is the identity, however deep.
    """

    def module(self, width: int) -> ResidualConnection:
        return ResidualConnection(self, width, scale=weight((), (), Zeros(), inputs=(), decay=False))


def _value(factor: Factor) -> jax.Array | float:
    return factor[...] if isinstance(factor, nnx.Param) else factor


def _times(factor: Factor, x: jax.Array) -> jax.Array:
    """Return x `[batch, length, width]` times the factor."""
    if isinstance(factor, nnx.Param):
        return (factor[None, None, :] if factor.ndim else factor[...]) * x
    return x if factor == 1.0 else factor * x
