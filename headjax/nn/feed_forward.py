"""The feed-forward sub-layer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.core.derivatives import gelu
from headjax.core.tensors import weight
from headjax.nn.operands import Dropout
from headjax.nn.projections import bias_weight, into_heads

ActivationName = Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh"]

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": gelu,
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


class FeedForward(nnx.Module):
    """phi(x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, equation 2).

    Gated it is (phi(x W_g + b_g) * (x W_1 + b_1)) W_2 + b_2 (Shazeer 2020): SwiGLU with `silu`, GEGLU with `gelu`.
    """

    def __init__(
        self, width: int, hidden: int, activation: ActivationName = "gelu", *, gated: bool = False, bias: bool = True
    ) -> None:
        axes = ("embed", "feed_forward")
        self.activation = activation
        self.gate = weight((width, hidden), axes) if gated else None  # W_g
        self.up = weight((width, hidden), axes)  # W_1
        self.down = weight((hidden, width), axes[::-1])  # W_2
        self.gate_bias = bias_weight(gated and bias, (hidden,), ("feed_forward",))
        self.up_bias = bias_weight(bias, (hidden,), ("feed_forward",))
        self.down_bias = bias_weight(bias, (width,), ("embed",))

    @property
    def hidden(self) -> int:
        """Number of units."""
        return self.up.shape[-1]

    def __call__(self, inputs: jax.Array, dropout: Dropout = Dropout()) -> jax.Array:
        """Return the outputs `[batch, length, width]`; dropout acts on the inner activations."""
        inner = dropout(self.inner(inputs))  # [batch, length, hidden]
        return into_heads(inner, self.down, self.down_bias)

    def inner(self, inputs: jax.Array) -> jax.Array:
        """Return the inner activations `[batch, length, hidden]` of inputs `[batch, length, width]`."""
        phi, up = ACTIVATIONS[self.activation], into_heads(inputs, self.up, self.up_bias)
        return phi(up) if self.gate is None else phi(into_heads(inputs, self.gate, self.gate_bias)) * up


def fold(key: jax.Array | None, index: jax.Array | int) -> jax.Array | None:
    """An independent key for each index, or None without a key."""
    return None if key is None else jax.random.fold_in(key, index)
