"""The affine map that ends most task outputs."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from headjax.attention.projections import into_heads
from headjax.core.tensors import Params, Tensor, Tensors, Zeros


def linear_tensors(width: int, size: int) -> Tensors:
    """Declares `kernel [width, size]` and `bias [size]`."""
    return {"kernel": Tensor((width, size), ("embed", None)), "bias": Tensor((size,), (None,), Zeros(), decay=False)}


def linear(params: Params, inputs: jax.Array) -> jax.Array:
    """X W + b in float32: `[..., width]` to `[..., size]`."""
    return into_heads(inputs, params["kernel"], params["bias"]).astype(jnp.float32)
