"""Dense maps between the residual stream and heads."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.core.tensors import Zeros, weight

Weight = jax.Array | nnx.Param[Any]
"""An array, by itself or in a module."""


def bias_weight(given: bool, shape: tuple[int, ...], axes: tuple[str | None, ...]) -> nnx.Param[Any] | None:
    """Declare a bias, which begins as zeros; None where the layer has none."""
    return weight(shape, axes, Zeros(), decay=False) if given else None


def into_heads(inputs: jax.Array, weight: Weight, bias: Weight | None = None) -> jax.Array:
    """Return X W + b: `[..., width]` by `[width, *features]` to `[..., *features]`."""
    tokens = inputs.reshape(-1, inputs.shape[-1])
    flat = tokens @ weight.reshape(weight.shape[0], -1)
    outputs = flat.reshape(*inputs.shape[:-1], *weight.shape[1:])
    return outputs if bias is None else outputs + bias.reshape((1,) * (outputs.ndim - bias.ndim) + bias.shape)


class HeadOutput(nnx.Module):
    """sum_h context_h W_O^h + b_O: the one place where heads are gated, read, refitted and cut.

    The kernel W_O is `[heads, value_dim, width]`; None without heads, of which the sum is zero.
    """

    def __init__(self, heads: int, value_dim: int, width: int, *, bias: bool) -> None:
        self.width, axes = width, ("heads", "head_dim", "embed")
        shape = (heads, value_dim, width)
        self.kernel = weight(shape, axes, inputs=(0, 1), drawn_as_module=True) if heads else None
        self.bias = bias_weight(bias, (width,), ("embed",))

    def __call__(self, contexts: jax.Array) -> jax.Array:
        """Map `[batch, query, heads * value_dim]` to `[batch, query, width]`."""
        if self.kernel is None:
            outputs = jnp.zeros((*contexts.shape[:-1], self.width), contexts.dtype)
        else:
            outputs = into_heads(contexts, self.kernel.reshape(-1, self.kernel.shape[-1]))
        return outputs if self.bias is None else outputs + self.bias.reshape(1, 1, -1)
