"""How a sub-layer joins the residual stream: one small class per scheme."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable

import jax

from headjax.core.fields import Checked, Positive
from headjax.core.serialize import kind
from headjax.core.tensors import Constant, Ones, Params, Tensor, Tensors, Zeros
from headjax.models.norms import LayerNorm, Norm

SubLayer = Callable[[jax.Array], jax.Array]
"""f, `[batch, length, width]` to the same shape, with its parameters and its dropout inside."""


class Residual(Checked, abc.ABC):
    """A residual connection around a sub-layer f."""

    @property
    @abc.abstractmethod
    def norm(self) -> Norm | None:
        """The normalisation it uses; None if it has none."""

    @abc.abstractmethod
    def tensors(self, width: int) -> Tensors:
        """The declared parameters."""

    @abc.abstractmethod
    def __call__(self, params: Params, x: jax.Array, f: SubLayer) -> jax.Array:
        """Joins x and f, `[batch, length, width]` each."""


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

    def __call__(self, params: Params, x: jax.Array, f: SubLayer) -> jax.Array:
        return self.norm(params["norm"], x + f(x))


@kind("scaled_post_norm")
@dataclasses.dataclass(frozen=True)
class ScaledPostNorm(Normalised):
    """LN(omega * x + f(x)) with a learned vector omega `[width]` on the shortcut: Admin (Liu et al. 2020, section 4).

    Omega starts as ones, which is `PostNorm`; `headjax.initialization` sets it. `headjax.initialization.fold_shortcuts`
    folds it into the weights around it.
    """

    def tensors(self, width: int) -> Tensors:
        return super().tensors(width) | {"shortcut": Tensor((width,), ("embed",), Ones, decay=False)}

    def __call__(self, params: Params, x: jax.Array, f: SubLayer) -> jax.Array:
        return self.norm(params["norm"], _row(params["shortcut"]) * x + f(x))


@kind("constant_post_norm")
@dataclasses.dataclass(frozen=True)
class ConstantPostNorm(Normalised):
    """LN(alpha x + f(x)) with a constant alpha: DeepNorm (Wang et al. 2022, section 3).

    Attributes:
        alpha: multiplies the shortcut; more than one makes updates of deep models small.
    """

    alpha: Positive = 1.0

    def __call__(self, params: Params, x: jax.Array, f: SubLayer) -> jax.Array:
        return self.norm(params["norm"], self.alpha * x + f(x))


@kind("pre_norm")
@dataclasses.dataclass(frozen=True)
class PreNorm(Normalised):
    """x + f(LN(x)) (GPT-2, ViT). The stack needs a final norm."""

    def __call__(self, params: Params, x: jax.Array, f: SubLayer) -> jax.Array:
        return x + f(self.norm(params["norm"], x))


@kind("scaled_pre_norm")
@dataclasses.dataclass(frozen=True)
class ScaledPreNorm(PreNorm):
    """x + lambda * f(LN(x)) with a learned vector lambda `[width]`: LayerScale (Touvron et al. 2021, equation 4).

    Attributes:
        initial: what every entry of lambda starts as.
    """

    initial: float = 1e-5

    def tensors(self, width: int) -> Tensors:
        return super().tensors(width) | {"scale": Tensor((width,), ("embed",), Constant(self.initial), decay=False)}

    def __call__(self, params: Params, x: jax.Array, f: SubLayer) -> jax.Array:
        return x + _row(params["scale"]) * f(self.norm(params["norm"], x))


@kind("no_norm")
@dataclasses.dataclass(frozen=True)
class NoNorm(Residual):
    """x + f(x) (T-Fixup, Huang et al. 2020, removes every normalisation)."""

    @property
    def norm(self) -> None:
        return None

    def tensors(self, width: int) -> Tensors:
        return {}

    def __call__(self, params: Params, x: jax.Array, f: SubLayer) -> jax.Array:
        return x + f(x)


@kind("scaled_no_norm")
@dataclasses.dataclass(frozen=True)
class ScaledNoNorm(NoNorm):
    """x + alpha f(x) with one learned alpha that starts as 0: ReZero (Bachlechner et al. 2020, equation 1).

    A fresh stack is the identity, however deep.
    """

    def tensors(self, width: int) -> Tensors:
        return {"scale": Tensor((), (), Zeros(), inputs=(), decay=False)}

    def __call__(self, params: Params, x: jax.Array, f: SubLayer) -> jax.Array:
        return x + params["scale"] * f(x)


def _row(vector: jax.Array) -> jax.Array:
    return vector[None, None, :]
