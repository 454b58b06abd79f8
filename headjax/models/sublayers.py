"""Feed-forward sub-layers, and dropout."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from headjax.attention.operands import Dropout
from headjax.attention.projections import into_heads
from headjax.core.derivatives import gelu
from headjax.core.fields import Checked, Size
from headjax.core.serialize import kind
from headjax.core.tensors import Params, Tensor, Tensors, Zeros
from headjax.mesh.random_bits import dropped


class Dropper(NamedTuple):
    """Zeroes entries with probability `rate` and scales the rest by 1 / (1 - rate); the identity without a key.

    Attributes:
        rate: probability of zeroing.
        key: PRNG key, or None outside training.
    """

    rate: float = 0.0
    key: jax.Array | None = None

    def __call__(self, inputs: jax.Array, split: int | None = None) -> jax.Array:
        """The inputs `[batch, ...]` after dropout; `split` is the dimension that the mesh axis `model` splits."""
        if self.key is None or self.rate == 0.0:
            return inputs
        return dropped(inputs, self.key, self.rate, split=split)

    def attention(self) -> Dropout | None:
        """The same dropout, for attention probabilities."""
        return None if self.key is None or self.rate == 0.0 else Dropout(self.rate, self.key)


class Skipper(NamedTuple):
    """Leaves out what a sub-layer adds for whole examples: stochastic depth (Huang et al. 2016).

    Attributes:
        rate: probability for an example, a scalar that may be traced; what the others add is scaled by 1 / (1 - rate).
        key: PRNG key.
    """

    rate: jax.Array | float
    key: jax.Array

    def __call__(self, inputs: jax.Array) -> jax.Array:
        return dropped(inputs, self.key, self.rate, shape=(inputs.shape[0], *(1,) * (inputs.ndim - 1)))


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
class FeedForward(Checked, abc.ABC):
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
    def __call__(self, params: Params, inputs: jax.Array, dropper: Dropper) -> jax.Array:
        """`[batch, length, width]` to the same shape; the dropper acts on the inner activations."""

    @abc.abstractmethod
    def flops(self, width: int, length: int) -> int:
        """Floating-point operations of one forward of one sequence."""


@kind("dense")
@dataclasses.dataclass(frozen=True)
class Dense(FeedForward):
    """phi(x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, equation 2)."""

    def tensors(self, width: int) -> Tensors:
        tensors = {
            "up": Tensor((width, self.hidden), ("embed", "feed_forward")),
            "down": Tensor((self.hidden, width), ("feed_forward", "embed")),
        }
        if self.bias:
            tensors["up_bias"] = Tensor((self.hidden,), ("feed_forward",), Zeros(), decay=False)
            tensors["down_bias"] = Tensor((width,), ("embed",), Zeros(), decay=False)
        return tensors

    def __call__(self, params: Params, inputs: jax.Array, dropper: Dropper) -> jax.Array:
        inner = ACTIVATIONS[self.activation](into_heads(inputs, params["up"], params.get("up_bias")))
        return into_heads(dropper(inner, split=2), params["down"], params.get("down_bias"))

    def flops(self, width: int, length: int) -> int:
        return 4 * length * width * self.hidden


@kind("gated")
@dataclasses.dataclass(frozen=True)
class GatedDense(FeedForward):
    """(phi(x W_g) * x W_1) W_2 (Shazeer 2020): SwiGLU with `silu`, GEGLU with `gelu`."""

    def tensors(self, width: int) -> Tensors:
        up = Tensor((width, self.hidden), ("embed", "feed_forward"))
        tensors = {"gate": up, "up": up, "down": Tensor((self.hidden, width), ("feed_forward", "embed"))}
        if self.bias:
            bias = Tensor((self.hidden,), ("feed_forward",), Zeros(), decay=False)
            tensors |= {
                "gate_bias": bias,
                "up_bias": bias,
                "down_bias": Tensor((width,), ("embed",), Zeros(), decay=False),
            }
        return tensors

    def __call__(self, params: Params, inputs: jax.Array, dropper: Dropper) -> jax.Array:
        gate = ACTIVATIONS[self.activation](into_heads(inputs, params["gate"], params.get("gate_bias")))
        inner = gate * into_heads(inputs, params["up"], params.get("up_bias"))
        return into_heads(dropper(inner, split=2), params["down"], params.get("down_bias"))

    def flops(self, width: int, length: int) -> int:
        return 6 * length * width * self.hidden
