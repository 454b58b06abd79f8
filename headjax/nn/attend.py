"""Attention from queries, keys and values to contexts: the choice of a kernel, and the reference softmax over keys."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from headjax.core.errors import KernelError
from headjax.mesh.mesh import current_mesh
from headjax.nn.kernels import KERNELS, OURS, choose, current_target, spread
from headjax.nn.operands import Attended, AttentionCache, AttentionInputs, Dropout, KeyValues, Mask


class AttentionOptions(NamedTuple):
    """Options of one attention call: everything but parameters and inputs.

    Attributes:
        mask: Keys that each query may see.
        bias: Added to the scaled logits, broadcastable to `[batch, heads, query, key]`.
        dropout: Dropout of the probabilities.
        positions: `[batch or 1, query]`, of the queries, for rotary embeddings.
        probabilities: Whether the caller may read them, which not every kernel holds.
        implementation: Name of the kernel.
        queries: `[batch, query]` bool, False at padding, for statistics; None without padding.
        observe: Probabilities pass through it on their way to the values.
        softcap: The c of c * tanh(logits / c), computed before the mask (Gemma 2).
    """

    mask: Mask | None = None
    bias: jax.Array | None = None
    dropout: Dropout = Dropout()
    positions: jax.Array | None = None
    probabilities: bool = False
    implementation: str = "auto"
    queries: jax.Array | None = None
    observe: Callable[[jax.Array], jax.Array] | None = None
    softcap: float | None = None

    def __call__(
        self, query: jax.Array, key: jax.Array, value: jax.Array, *, scale: float, mixing: jax.Array | None = None
    ) -> Attended:
        """Compute `attend` with these options."""
        bias = self.bias
        if bias is not None and (bias.ndim < 4 or bias.shape[3] != key.shape[1]):  # all four axes, an entry for a key
            bias = jnp.broadcast_to(bias, (*(1,) * (4 - bias.ndim), *bias.shape[:-1], key.shape[1]))
        options = (self.mask, bias, self.dropout, mixing, self.observe, self.softcap)
        operands, machine, mesh = AttentionInputs(query, key, value, scale, *options), current_target(), current_mesh()
        for name, array in {"key": key, "value": value}.items():
            if not array.shape[2] or operands.heads % array.shape[2]:
                raise KernelError(f"{name} heads: {array.shape[2]} does not divide the {operands.heads} query heads")
        alone = machine if mesh is None else machine._replace(devices=1)
        name = choose(self.implementation, operands, alone, self.probabilities or self.observe is not None)
        if mixing is not None and name != OURS:
            operands = operands._replace(query=query * mixing[None, None], mixing=None)
        compute: Callable[..., Attended] = KERNELS[name].compute or einsum_attention
        if name == OURS:  # Pallas interprets it on a CPU
            compute = functools.partial(compute, interpret=machine.platform == "cpu")
        if mesh is not None and not KERNELS[name].partitioned:
            compute = spread(compute, mesh)
        return compute(operands)


def run_attention(
    module: Any,
    x: jax.Array,
    memory: jax.Array | KeyValues | None = None,
    options: AttentionOptions = AttentionOptions(),
    cache: AttentionCache | None = None,
) -> tuple[jax.Array, Attended, AttentionCache | None]:
    """Compute an attention module's `__call__` for one axis of examples, as layers and decoding steps do.

    `memory` may also be its own `key_values`, computed before. With a cache, x stands behind the tokens in it, and the
    keys and values of x join theirs. Returns the outputs `[batch, query, width]`, what they combine, and the new cache.
    """
    if isinstance(memory, dict):
        key_values = memory
    else:
        key_values = module.key_values(x if memory is None else memory, options.positions if memory is None else None)
    if cache is not None:
        known_empty, cache = isinstance(cache.used, int), cache.append(key_values, x.shape[1])
        key_values = key_values if known_empty else cache.key_values()
    attended = module.attend(x, key_values, options)
    return module.combine(attended.context), attended, cache


def attend(
    query: jax.Array, key: jax.Array, value: jax.Array, *, scale: float, mixing: jax.Array | None = None, **options: Any
) -> Attended:
    """Compute scaled dot-product attention (Vaswani et al. 2017).

        A_h = softmax(scale * Q_h K_h^T + bias_h),   context_h = A_h V_h

    Keys and values may have fewer heads than queries (grouped, multi-query, shared): head h of `heads` reads head
    h * key_heads // heads. With `mixing [heads, dim]` all heads share one query, Q_h = Q diag(mixing_h). The options
    are those of `AttentionOptions`.
    """
    return AttentionOptions(**options)(query, key, value, scale=scale, mixing=mixing)


@jax.custom_jvp
def softmax(logits: jax.Array) -> jax.Array:
    """exp(l_k) / sum_j exp(l_j) over the last axis, whose derivative in closed form keeps the output alone."""
    return jax.nn.softmax(logits, axis=-1)


@softmax.defjvp
def _softmax_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Tangent: d p = p (d l - sum_j p_j d l_j)."""
    ((logits,), (change,)) = primals, tangents
    p = softmax(logits)
    return p, p * (change - (p * change).sum(axis=-1, keepdims=True))


def einsum_attention(operands: AttentionInputs) -> Attended:
    """Compute softmax(scale * Q K^T + bias) V, the reference, in einsums that hold every probability in float32."""
    query, key, value, scale, mask, bias, dropout, _, observe, softcap = operands
    (batch, queries, heads, dim), (_, keys, key_heads, _) = query.shape, key.shape
    # Heads before tokens is 5 to 10% faster on CPUs; other compilers choose layouts.
    rows = jnp.swapaxes(query * jnp.asarray(scale, query.dtype), 1, 2)  # [batch, heads, query, dim]
    rows = rows.reshape(batch, key_heads, heads // key_heads * queries, dim)
    logits = jnp.einsum("bgqd,bgkd->bgqk", rows, jnp.swapaxes(key, 1, 2))
    logits = logits.reshape(batch, heads, queries, keys).astype(jnp.float32)
    if bias is not None:
        logits = logits + bias.astype(jnp.float32)
    if softcap is not None:
        logits = softcap * jnp.tanh(logits / softcap)
    allowed = None if mask is None else mask.array(queries, keys)
    if allowed is not None:
        logits = jnp.where(allowed, logits, jnp.finfo(jnp.float32).min)
    probabilities = softmax(logits) if observe is None else observe(softmax(logits))
    weights = dropout(probabilities.astype(value.dtype))  # [batch, heads, query, key]
    rows = weights.reshape(batch, value.shape[2], heads // value.shape[2] * queries, keys)
    context = jnp.einsum("bgqk,bgkv->bgqv", rows, jnp.swapaxes(value, 1, 2))
    context = jnp.swapaxes(context.reshape(batch, heads, queries, value.shape[3]), 1, 2)
    return Attended(context, probabilities)  # [batch, query, heads, value_dim]
