"""Explain which kernel computes a formulation, and why, without computing it."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp

from headjax.attention.attend import Call, watch_choices
from headjax.attention.formulation import Attention
from headjax.attention.kernels.choose import KernelChoice, target
from headjax.attention.module import AttentionModule
from headjax.attention.operands import Dropout, Mask


def explain(
    attention: Attention,
    *,
    query_length: int,
    key_length: int | None = None,
    dtype: str = "float32",
    causal: bool = False,
    padding: bool = False,
    segments: bool = False,
    window: int | None = None,
    bias: bool = False,
    dropout: float = 0.0,
    probabilities: bool = False,
    implementation: str = "auto",
    platform: str | None = None,
    devices: int = 1,
    generation: int | None = None,
) -> KernelChoice:
    """Return the kernel that `attend` takes for a formulation, with the reason.

    Args:
        attention: the formulation.
        query_length, key_length: lengths; None takes as many keys as queries.
        dtype: compute type.
        causal, padding, segments, window: conditions of the mask.
        bias: whether a bias for each query and key is added, as relative positions are.
        dropout: rate of the dropout of probabilities.
        probabilities: whether the caller may read the probabilities.
        implementation: `auto`, or the name of a kernel.
        platform: `cpu`, `gpu` or `tpu`; None is the present machine.
        devices: number of devices of that platform, without a mesh.
        generation: generation of the TPU; None is one without limits.

    Raises:
        KernelError: the named kernel cannot; the message says why.
    """
    keys = query_length if key_length is None else key_length
    shapes = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, jnp.dtype(dtype)), attention.module(1, 1))

    def trace(module: AttentionModule) -> jax.Array:
        x, y = jnp.zeros((1, query_length, 1), dtype), jnp.zeros((1, keys, 1), dtype)
        call = Call(
            mask=Mask(
                causal=causal,
                keys=jnp.ones((1, keys), bool) if padding else None,
                query_segments=jnp.zeros((1, query_length), jnp.int32) if segments else None,
                key_segments=jnp.zeros((1, keys), jnp.int32) if segments else None,
                window=window,
            ),
            bias=jnp.zeros((1, 1, query_length, keys)) if bias else None,
            dropout=Dropout(dropout, jax.random.key(0)),
            probabilities=probabilities,
            implementation=implementation,
        )
        return module.attend(x, module.key_values(y, None), call).context

    machine = contextlib.nullcontext() if platform is None else target(platform, devices, generation)
    with machine, watch_choices() as choices:
        jax.eval_shape(trace, shapes)
    return choices[0] if choices else KernelChoice("none", "a layer without heads attends to nothing")
