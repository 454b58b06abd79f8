"""Residual connections: how a sub-layer joins the stream."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import jax
from flax import nnx

from headjax.core.fields import Positive
from headjax.core.modules import Spec
from headjax.core.norms import LayerNorm, Norm
from headjax.core.serialize import kind
from headjax.core.tensors import Ones, weight

Factor = nnx.Param[Any] | float
"""A factor of the stream: a number, or a learned vector `[width]`."""


@dataclasses.dataclass(frozen=True)
class Residual(Spec, abc.ABC):
    """A residual connection around a sub-layer f.

    Attributes:
        norm: the normalisation.
    """

    norm: Norm = LayerNorm()

    @abc.abstractmethod
    def module(self, width: int) -> ResidualConnection:
        """Return the module."""


class ResidualConnection(nnx.Module):
    """a x + f(x), with a the `shortcut`; the base of those that normalise before or after."""

    norm: Any

    def __init__(self, config: Residual, width: int, *, shortcut: Factor = 1.0) -> None:
        self.config = config
        self.norm = config.norm.module(width)
        self.shortcut = shortcut

    def enter(self, x: jax.Array) -> jax.Array:
        """Return f's input from the stream `[batch, length, width]`."""
        return x

    def join(self, x: jax.Array, outputs: jax.Array) -> jax.Array:
        """Return the stream after f, from x and the outputs of f, `[batch, length, width]` each."""
        if isinstance(self.shortcut, nnx.Param):
            x = self.shortcut[None, None, :] * x
        elif self.shortcut != 1.0:
            x = self.shortcut * x
        return x + outputs

    def factors(self) -> tuple[jax.Array | float, jax.Array | float]:
        """Return (a, b) of the sum a x + b f that the stream becomes, before any norm: numbers or vectors `[width]`."""
        return (self.shortcut[...] if isinstance(self.shortcut, nnx.Param) else self.shortcut), 1.0


@kind("post_norm")
@dataclasses.dataclass(frozen=True)
class PostNorm(Residual):
    """LN(x + f(x)) (Vaswani et al. 2017; BERT)."""

    def module(self, width: int) -> PostNormConnection:
        return PostNormConnection(self, width)


@kind("scaled_post_norm")
@dataclasses.dataclass(frozen=True)
class ScaledPostNorm(Residual):
    """LN(omega * x + f(x)) with a learned vector omega `[width]` on the shortcut: Admin (Liu et al. 2020, section 4).

    Omega starts as ones, which is `PostNorm`; `headjax.initialization` sets it. `headjax.initialization.fold_shortcuts`
    folds it into the weights around it.
    """

    def module(self, width: int) -> PostNormConnection:
        return PostNormConnection(self, width, shortcut=weight((width,), ("embed",), Ones, decay=False))


@kind("constant_post_norm")
@dataclasses.dataclass(frozen=True)
class ConstantPostNorm(Residual):
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
class PreNorm(Residual):
    """x + f(LN(x)) (GPT-2, ViT). The stack needs a final norm."""

    def module(self, width: int) -> PreNormConnection:
        return PreNormConnection(self, width)


class PreNormConnection(ResidualConnection):
    """x + f(LN(x))."""

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
