"""Residual connections: how a sub-layer joins the stream."""

from __future__ import annotations

import functools
from typing import Any, Literal

import jax
from flax import nnx

from headjax.core.tensors import Ones, weight
from headjax.nn.norms import Norm

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
