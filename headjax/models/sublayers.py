"""Feed-forward sub-layers."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from headjax.attention.operands import Dropout
from headjax.attention.projections import into_heads
from headjax.core.derivatives import gelu
from headjax.core.fields import Size
from headjax.core.modules import Spec
from headjax.core.serialize import kind
from headjax.core.tensors import Params, Tensors, Zeros, weight


def fold(key: jax.Array | None, index: int) -> jax.Array | None:
    """An independent key for each index, or None without a key."""
    return None if key is None else jax.random.fold_in(key, index)


ActivationName = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh"]


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": gelu,
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


@dataclasses.dataclass(frozen=True)
class FeedForward(Spec, abc.ABC):
    """Base of the feed-forward sub-layers.

    Attributes:
        hidden: inner size (d_ff).
        activation: name of the nonlinearity.
        bias: whether the maps have biases.
    """

    hidden: Size
    activation: ActivationName = "gelu"
    bias: bool = True

    @abc.abstractmethod
    def tensors(self, width: int) -> Tensors:
        """The declared parameters."""

    @abc.abstractmethod
    def inner(self, params: Params, inputs: jax.Array) -> jax.Array:
        """Return the inner activations `[batch, length, hidden]` of inputs `[batch, length, width]`."""

    def __call__(self, params: Params, inputs: jax.Array, dropout: Dropout) -> jax.Array:
        """Return inner W_2 + b_2, `[batch, length, width]`; dropout acts on the inner activations."""
        inner = dropout(self.inner(params, inputs), split=2)
        return into_heads(inner, params["down"], params.get("down_bias"))

    @abc.abstractmethod
    def flops(self, width: int, length: int) -> int:
        """Floating-point operations of one forward of one sequence."""


@kind("dense")
@dataclasses.dataclass(frozen=True)
class Dense(FeedForward):
    """phi(x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, equation 2)."""

    def tensors(self, width: int) -> Tensors:
        tensors = {
            "up": weight((width, self.hidden), ("embed", "feed_forward")),
            "down": weight((self.hidden, width), ("feed_forward", "embed")),
        }
        if self.bias:
            tensors["up_bias"] = weight((self.hidden,), ("feed_forward",), Zeros(), decay=False)
            tensors["down_bias"] = weight((width,), ("embed",), Zeros(), decay=False)
        return tensors

    def inner(self, params: Params, inputs: jax.Array) -> jax.Array:
        return ACTIVATIONS[self.activation](into_heads(inputs, params["up"], params.get("up_bias")))

    def flops(self, width: int, length: int) -> int:
        return 4 * length * width * self.hidden


@kind("gated")
@dataclasses.dataclass(frozen=True)
class GatedDense(FeedForward):
    """(phi(x W_g) * x W_1) W_2 (Shazeer 2020): SwiGLU with `silu`, GEGLU with `gelu`."""

    def tensors(self, width: int) -> Tensors:
        up = weight((width, self.hidden), ("embed", "feed_forward"))
        tensors = {"gate": up, "up": up, "down": weight((self.hidden, width), ("feed_forward", "embed"))}
        if self.bias:
            bias = weight((self.hidden,), ("feed_forward",), Zeros(), decay=False)
            tensors |= {
                "gate_bias": bias,
                "up_bias": bias,
                "down_bias": weight((width,), ("embed",), Zeros(), decay=False),
            }
        return tensors

    def inner(self, params: Params, inputs: jax.Array) -> jax.Array:
        gate = ACTIVATIONS[self.activation](into_heads(inputs, params["gate"], params.get("gate_bias")))
        return gate * into_heads(inputs, params["up"], params.get("up_bias"))

    def flops(self, width: int, length: int) -> int:
        return 6 * length * width * self.hidden
