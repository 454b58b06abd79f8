"""Feed-forward sub-layers."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from headjax.attention.operands import Dropout
from headjax.attention.projections import bias_weight, into_heads
from headjax.core.derivatives import gelu
from headjax.core.fields import Size
from headjax.core.modules import Spec
from headjax.core.serialize import kind
from headjax.core.tensors import weight


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
    def module(self, width: int) -> DenseFeedForward:
        """Return the module."""

    @abc.abstractmethod
    def flops(self, width: int, length: int) -> int:
        """Floating-point operations of one forward of one sequence."""


@kind("dense")
@dataclasses.dataclass(frozen=True)
class Dense(FeedForward):
    """phi(x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, equation 2)."""

    def module(self, width: int) -> DenseFeedForward:
        return DenseFeedForward(self, width)

    def flops(self, width: int, length: int) -> int:
        return 4 * length * width * self.hidden


class DenseFeedForward(nnx.Module):
    """The module of `Dense`, with W_1 in `up` and W_2 in `down`."""

    def __init__(self, config: FeedForward, width: int) -> None:
        self.config = config
        self.up = weight((width, config.hidden), ("embed", "feed_forward"))
        self.down = weight((config.hidden, width), ("feed_forward", "embed"))
        self.up_bias = bias_weight(config.bias, (config.hidden,), ("feed_forward",))
        self.down_bias = bias_weight(config.bias, (width,), ("embed",))

    def __call__(self, inputs: jax.Array, dropout: Dropout) -> jax.Array:
        """Return inner W_2 + b_2, `[batch, length, width]`; dropout acts on the inner activations."""
        inner = dropout(self.inner(inputs))  # [batch, length, hidden]
        return into_heads(inner, self.down, self.down_bias)

    def inner(self, inputs: jax.Array) -> jax.Array:
        """Return the inner activations `[batch, length, hidden]` of inputs `[batch, length, width]`."""
        return ACTIVATIONS[self.config.activation](into_heads(inputs, self.up, self.up_bias))


@kind("gated")
@dataclasses.dataclass(frozen=True)
class GatedDense(FeedForward):
    """(phi(x W_g) * x W_1) W_2 (Shazeer 2020): SwiGLU with `silu`, GEGLU with `gelu`."""

    def module(self, width: int) -> GatedFeedForward:
        return GatedFeedForward(self, width)

    def flops(self, width: int, length: int) -> int:
        return 6 * length * width * self.hidden


class GatedFeedForward(DenseFeedForward):
    """The module of `GatedDense`, with W_g in `gate`."""

    def __init__(self, config: FeedForward, width: int) -> None:
        self.config = config
        self.gate = weight((width, config.hidden), ("embed", "feed_forward"))
        self.up = weight((width, config.hidden), ("embed", "feed_forward"))
        self.down = weight((config.hidden, width), ("feed_forward", "embed"))
        self.gate_bias = bias_weight(config.bias, (config.hidden,), ("feed_forward",))
        self.up_bias = bias_weight(config.bias, (config.hidden,), ("feed_forward",))
        self.down_bias = bias_weight(config.bias, (width,), ("embed",))

    def inner(self, inputs: jax.Array) -> jax.Array:
        gate = ACTIVATIONS[self.config.activation](into_heads(inputs, self.gate, self.gate_bias))
        return gate * into_heads(inputs, self.up, self.up_bias)  # [batch, length, hidden]
