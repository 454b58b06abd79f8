"""How a sub-layer joins the residual stream: one small class per scheme."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable

import jax

from headjax.models.norms import LayerNorm, Norm
from headjax.serialize import kind
from headjax.tensors import Params, Tensors


@dataclasses.dataclass(frozen=True)
class Residual(abc.ABC):
    """A residual connection around a sub-layer f.

    Attributes:
        norm: the normalisation it uses.
    """

    norm: Norm = LayerNorm()

    def tensors(self, width: int) -> Tensors:
        """The declared parameters."""
        return {"norm": self.norm.tensors(width)}

    @abc.abstractmethod
    def __call__(self, params: Params, x: jax.Array, f: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """Joins x and f, `[batch, length, width]` each."""


@kind("post_norm")
@dataclasses.dataclass(frozen=True)
class PostNorm(Residual):
    """LN(x + f(x)) (Vaswani et al. 2017; BERT)."""

    def __call__(self, params: Params, x: jax.Array, f: Callable[[jax.Array], jax.Array]) -> jax.Array:
        return self.norm(params["norm"], x + f(x))


@kind("pre_norm")
@dataclasses.dataclass(frozen=True)
class PreNorm(Residual):
    """x + f(LN(x)) (GPT-2, ViT). The stack needs a final norm."""

    def __call__(self, params: Params, x: jax.Array, f: Callable[[jax.Array], jax.Array]) -> jax.Array:
        return x + f(self.norm(params["norm"], x))
