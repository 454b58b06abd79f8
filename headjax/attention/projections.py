"""Dense maps between the residual stream and heads, computed on two-dimensional token matrices."""

from __future__ import annotations

import math

import jax


def into_heads(inputs: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """X W + b: `[..., width]` by `[width, *features]` to `[..., *features]`."""
    tokens = inputs.reshape(-1, inputs.shape[-1])
    flat = tokens @ weight.reshape(weight.shape[0], -1)
    outputs = flat.reshape(*inputs.shape[:-1], *weight.shape[1:])
    return outputs if bias is None else outputs + bias.reshape((1,) * (outputs.ndim - bias.ndim) + bias.shape)


def out_of_heads(context: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """Sum over the features of context W + b: `[batch, query, heads, value_dim]` by `[heads, value_dim, width]`."""
    features = math.prod(weight.shape[:-1])
    flat = context.reshape(-1, features) @ weight.reshape(features, weight.shape[-1])
    outputs = flat.reshape(*context.shape[:2], weight.shape[-1])
    return outputs if bias is None else outputs + bias.reshape(1, 1, -1)
