"""Dense maps between the residual stream and heads, and the sizes of heads."""

from __future__ import annotations

import math

import jax

from headjax.attention.attend import default_scale
from headjax.attention.rotary import Rotary
from headjax.core.tensors import Tensors, Zeros, weight


def declare_into_heads(
    name: str, inputs: int, heads: int, size: int, *, bias: bool, input_axis: str | None = "embed", axis: str = "heads"
) -> Tensors:
    """Declare `<name> [inputs, heads, size]` and, with a bias, `<name>_bias [heads, size]`.

    Heads on the axis `heads` are those that surgery removes; heads on any other axis (`kv_heads`) stay whole.
    """
    kernel = weight((inputs, heads, size), (input_axis, axis, "head_dim"))
    if not bias:
        return {name: kernel}
    return {
        name: kernel,
        f"{name}_bias": weight((heads, size), (axis, "head_dim"), Zeros(), decay=False),
    }


def declare_output(heads: int, size: int, width: int, *, bias: bool) -> Tensors:
    """Declare `output [heads, size, width]` and, with a bias, `output_bias [width]`."""
    tensors = {"output": weight((heads, size, width), ("heads", "head_dim", "embed"), inputs=(0, 1))}
    if bias:
        tensors["output_bias"] = weight((width,), ("embed",), Zeros(), decay=False)
    return tensors


def into_heads(inputs: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """Return X W + b: `[..., width]` by `[width, *features]` to `[..., *features]`."""
    tokens = inputs.reshape(-1, inputs.shape[-1])
    flat = tokens @ weight.reshape(weight.shape[0], -1)
    outputs = flat.reshape(*inputs.shape[:-1], *weight.shape[1:])
    return outputs if bias is None else outputs + bias.reshape((1,) * (outputs.ndim - bias.ndim) + bias.shape)


def out_of_heads(context: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """Return sum_h context_h W_h + b: `[batch, query, heads, value_dim]` by `[heads, value_dim, width]`."""
    features = math.prod(weight.shape[:-1])
    flat = context.reshape(-1, features) @ weight.reshape(features, weight.shape[-1])
    outputs = flat.reshape(*context.shape[:2], weight.shape[-1])
    return outputs if bias is None else outputs + bias.reshape(1, 1, -1)


class HeadSizes:
    """Sizes of formulations in which each head has queries, keys and values of its own size.

    Attributes:
        head_dim: size of each query and key.
        value_dim: size of each value; None is `head_dim`.
        scale: multiplies the dot products; None is 1 / sqrt(head_dim), times the factor that the rotary scaling asks
            for.
        rotary: turns queries and keys by their positions, or None.
    """

    head_dim: int
    value_dim: int | None
    scale: float | None
    rotary: Rotary | None = None

    @property
    def values(self) -> int:
        """Size of each value."""
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def logit_scale(self) -> float:
        """Factor of the dot products."""
        if self.scale is not None:
            return self.scale
        return default_scale(self.head_dim) * (1.0 if self.rotary is None else self.rotary.logit_factor)
