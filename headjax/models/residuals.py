"""Residual connections: how a sub-layer joins the stream."""

from __future__ import annotations

import abc
import dataclasses

import jax

from headjax.core.fields import Positive
from headjax.core.modules import Spec
from headjax.core.norms import LayerNorm, Norm
from headjax.core.serialize import kind
from headjax.core.tensors import Constant, Ones, Params, Tensors, Zeros, weight


class Residual(Spec, abc.ABC):
    """A residual connection around a sub-layer f."""

    @property
    @abc.abstractmethod
    def norm(self) -> Norm | None:
        """The normalisation it uses; None if it has none."""

    @abc.abstractmethod
    def tensors(self, width: int) -> Tensors:
        """Declare the parameters."""

    def enter(self, params: Params, x: jax.Array) -> jax.Array:
        """Return what f reads of the stream `[batch, length, width]`."""
        return x

    @abc.abstractmethod
    def join(self, params: Params, x: jax.Array, outputs: jax.Array) -> jax.Array:
        """Return the stream after f, from x and the outputs of f, `[batch, length, width]` each."""

    def factors(self, params: Params) -> tuple[jax.Array | float, jax.Array | float]:
        """Return (a, b) of the sum a x + b f that the stream becomes, before any norm: numbers or vectors `[width]`."""
        return 1.0, 1.0


@dataclasses.dataclass(frozen=True)
class Normalised(Residual):
    """Base of the residual connections with a normalisation.

    Attributes:
        norm: the normalisation.
    """

    norm: Norm = LayerNorm()

    def tensors(self, width: int) -> Tensors:
        return {"norm": self.norm.tensors(width)}


@kind("post_norm")
@dataclasses.dataclass(frozen=True)
class PostNorm(Normalised):
    """LN(x + f(x)) (Vaswani et al. 2017; BERT)."""

    def join(self, params: Params, x: jax.Array, outputs: jax.Array) -> jax.Array:
        return self.norm(params["norm"], x + outputs)


@kind("scaled_post_norm")
@dataclasses.dataclass(frozen=True)
class ScaledPostNorm(Normalised):
    """LN(omega * x + f(x)) with a learned vector omega `[width]` on the shortcut: Admin (Liu et al. 2020, section 4).

    Omega starts as ones, which is `PostNorm`; `headjax.initialization` sets it. `headjax.initialization.fold_shortcuts`
    folds it into the weights around it.
    """

    def tensors(self, width: int) -> Tensors:
        return super().tensors(width) | {"shortcut": weight((width,), ("embed",), Ones, decay=False)}

    def join(self, params: Params, x: jax.Array, outputs: jax.Array) -> jax.Array:
        return self.norm(params["norm"], _row(params["shortcut"]) * x + outputs)

    def factors(self, params: Params) -> tuple[jax.Array | float, jax.Array | float]:
        return params["shortcut"], 1.0


@kind("constant_post_norm")
@dataclasses.dataclass(frozen=True)
class ConstantPostNorm(Normalised):
    """LN(alpha x + f(x)) with a constant alpha: DeepNorm (Wang et al. 2022, section 3).

    Attributes:
        alpha: multiplies the shortcut; more than one makes updates of deep models small.
    """

    alpha: Positive = 1.0

    def join(self, params: Params, x: jax.Array, outputs: jax.Array) -> jax.Array:
        return self.norm(params["norm"], self.alpha * x + outputs)

    def factors(self, params: Params) -> tuple[jax.Array | float, jax.Array | float]:
        return self.alpha, 1.0


@kind("pre_norm")
@dataclasses.dataclass(frozen=True)
class PreNorm(Normalised):
    """x + f(LN(x)) (GPT-2, ViT). The stack needs a final norm."""

    def enter(self, params: Params, x: jax.Array) -> jax.Array:
        return self.norm(params["norm"], x)

    def join(self, params: Params, x: jax.Array, outputs: jax.Array) -> jax.Array:
        return x + outputs


@kind("sandwich_norm")
@dataclasses.dataclass(frozen=True)
class SandwichNorm(PreNorm):
    """x + LN'(f(LN(x))) with a norm on both sides of f (Sandwich-LN, Ding et al. 2021; Gemma 2 and 3)."""

    def tensors(self, width: int) -> Tensors:
        return super().tensors(width) | {"after": self.norm.tensors(width)}

    def join(self, params: Params, x: jax.Array, outputs: jax.Array) -> jax.Array:
        return x + self.norm(params["after"], outputs)

    def factors(self, params: Params) -> tuple[jax.Array | float, jax.Array | float]:
        """Return (0, 1): the norm behind f reads f alone."""
        return 0.0, 1.0


@kind("scaled_pre_norm")
@dataclasses.dataclass(frozen=True)
class ScaledPreNorm(PreNorm):
    """x + lambda * f(LN(x)) with a learned vector lambda `[width]`: LayerScale (Touvron et al. 2021, equation 4).

    Attributes:
        initial: value of every entry of lambda at the start.
    """

    initial: float = 1e-5

    def tensors(self, width: int) -> Tensors:
        return super().tensors(width) | {"scale": weight((width,), ("embed",), Constant(self.initial), decay=False)}

    def join(self, params: Params, x: jax.Array, outputs: jax.Array) -> jax.Array:
        return x + _row(params["scale"]) * outputs

    def factors(self, params: Params) -> tuple[jax.Array | float, jax.Array | float]:
        return 1.0, params["scale"]


@kind("no_norm")
@dataclasses.dataclass(frozen=True)
class NoNorm(Residual):
    """x + f(x) (T-Fixup, Huang et al. 2020, removes every normalisation)."""

    @property
    def norm(self) -> None:
        return None

    def tensors(self, width: int) -> Tensors:
        return {}

    def join(self, params: Params, x: jax.Array, outputs: jax.Array) -> jax.Array:
        return x + outputs


@kind("scaled_no_norm")
@dataclasses.dataclass(frozen=True)
class ScaledNoNorm(NoNorm):
    """x + alpha f(x) with one learned alpha that starts as 0: ReZero (Bachlechner et al. 2020, equation 1).

    A fresh stack is the identity, however deep.
    """

    def tensors(self, width: int) -> Tensors:
        return {"scale": weight((), (), Zeros(), inputs=(), decay=False)}

    def join(self, params: Params, x: jax.Array, outputs: jax.Array) -> jax.Array:
        return x + params["scale"] * outputs

    def factors(self, params: Params) -> tuple[jax.Array | float, jax.Array | float]:
        return 1.0, params["scale"]


def _row(vector: jax.Array) -> jax.Array:
    return vector[None, None, :]
