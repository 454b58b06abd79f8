"""Dense maps between the residual stream and heads: declared here, computed on two-dimensional token matrices."""

from __future__ import annotations

import math

import jax

from headjax.core.tensors import Tensor, Tensors, Zeros


def declare_into_heads(
    name: str, inputs: int, heads: int, size: int, *, bias: bool, input_axis: str | None = "embed", axis: str = "heads"
) -> Tensors:
    """Declares `<name> [inputs, heads, size]` and, with a bias, `<name>_bias [heads, size]`.

    Heads on the axis `heads` are the formulation's own, which surgery takes; any other axis name (`kv_heads`) counts
    something else and is left whole.
    """
    removable = axis == "heads"
    weight = Tensor((inputs, heads, size), (input_axis, axis, "head_dim"), head_axis=1 if removable else None)
    if not bias:
        return {name: weight}
    return {
        name: weight,
        f"{name}_bias": Tensor(
            (heads, size), (axis, "head_dim"), Zeros(), head_axis=0 if removable else None, decay=False
        ),
    }


def declare_output(heads: int, size: int, width: int, *, bias: bool) -> Tensors:
    """Declares `output [heads, size, width]` and, with a bias, `output_bias [width]`."""
    tensors = {"output": Tensor((heads, size, width), ("heads", "head_dim", "embed"), inputs=(0, 1), head_axis=0)}
    if bias:
        tensors["output_bias"] = Tensor((width,), ("embed",), Zeros(), decay=False)
    return tensors


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
