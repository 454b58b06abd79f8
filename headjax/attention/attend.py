"""The one place with a softmax over keys."""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from headjax.attention.attended import AcrossHeads, Attended, Dropout
from headjax.attention.kernels.choose import Choice, choose, current_target
from headjax.attention.kernels.partition import spread
from headjax.attention.kernels.request import request_of
from headjax.attention.kernels.table import KERNELS
from headjax.attention.mask import Mask
from headjax.core.errors import KernelError
from headjax.mesh.mesh import current_mesh

__all__ = ["AcrossHeads", "Attended", "Dropout", "apply_gates", "attend", "default_scale", "expand_gates"]

_watched: contextvars.ContextVar[list[Choice] | None] = contextvars.ContextVar("watched", default=None)


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    scale: float,
    mask: Mask | None = None,
    bias: jax.Array | None = None,
    gates: jax.Array | None = None,
    dropout: Dropout | None = None,
    mixing: jax.Array | None = None,
    across_heads: AcrossHeads | None = None,
    probabilities: bool = False,
    implementation: str = "auto",
) -> Attended:
    """Scaled dot-product attention with head gates.

        A_h = softmax(scale * Q_h K_h^T + bias_h),   context_h = xi_h * A_h V_h

    The sum over heads of context_h W_O^h with gates xi is Michel et al. (2019), section 2.2; xi = 1 is the attention of
    Vaswani et al. (2017). Gating the context equals gating the probabilities, and no kernel has to know of it.

    Keys and values may have fewer heads than queries (grouped, multi-query, shared): head h of `heads` reads head
    h * key_heads // heads.

    Args:
        query: `[batch, query, heads, qk_dim]`.
        key: `[batch, key, key_heads, qk_dim]`, key_heads a divisor of heads.
        value: `[batch, key, value_heads, value_dim]`, value_heads a divisor of heads.
        scale: multiplies the dot products (1 / sqrt(head_dim) unless a conversion carries another).
        mask: which keys a query may see; a query that may see none attends evenly to all (the fused
            kernels say where they differ).
        bias: added to the scaled dot products, broadcastable to `[batch, heads, query, key]`.
        gates: `[heads]`, `[batch, heads]` or `[batch, query, heads]`; None is all ones.
        dropout: dropout of the probabilities, or None.
        mixing: `[heads, qk_dim]`; the query then has one head and head h's is query * mixing_h (collaborative
            attention), which a kernel may compute block by block.
        across_heads: maps of logits and weights across heads (talking heads). The value heads are then as many as
            the mixed weights have.
        probabilities: whether somebody may look at the probabilities, so that `auto` takes a kernel that has them.
        implementation: a name in `headjax.attention.kernels.KERNELS`, or `auto`; see `headjax.attention.explain`.

    Raises:
        KernelError: the named implementation is unknown or cannot do what is asked; the message says why.
    """
    platform, devices, generation = current_target()
    mesh = current_mesh()
    asked = request_of(
        query,
        key,
        value,
        mask=mask,
        bias=bias,
        dropout=dropout,
        mixing=mixing,
        across_heads=across_heads,
        probabilities=probabilities,
        platform=platform,
        devices=devices if mesh is None else 1,
        generation=generation,
    )
    if across_heads is None:
        for what, heads in (("key", asked.key_heads), ("value", asked.value_heads)):
            if heads < 1 or asked.heads % heads:
                raise KernelError(f"{what} heads: {heads} does not divide the {asked.heads} query heads")
    choice = choose(implementation, asked)
    if (watched := _watched.get()) is not None:
        watched.append(choice)
        heads = value.shape[2] if across_heads is not None else asked.heads
        return Attended(jnp.zeros((*query.shape[:2], heads, asked.value_dim), value.dtype), None)
    options = {"scale": scale, "mask": mask, "bias": bias, "dropout": dropout, "across_heads": across_heads}
    kernel = KERNELS[choice.implementation]
    if kernel.can.needs_mixing:
        options |= {"mixing": mixing, "interpret": platform == "cpu"}
    elif mixing is not None:
        query = query * mixing[None, None]
    compute = kernel.load()
    if mesh is not None and not kernel.can.partitioned:
        compute = spread(compute, mesh, asked)
    attended = compute(query, key, value, **options)
    return apply_gates(attended, gates)


def apply_gates(attended: Attended, gates: jax.Array | None) -> Attended:
    """The contexts times their gates, of any of `attend`'s shapes; None leaves them."""
    if gates is None:
        return attended
    return attended._replace(context=attended.context * expand_gates(gates).astype(attended.context.dtype))


def expand_gates(gates: jax.Array) -> jax.Array:
    """Gates of any of `attend`'s shapes, broadcastable to `[batch, query, heads, value_dim]`."""
    if gates.ndim == 3:
        return gates[..., None]
    return gates[:, None, :, None] if gates.ndim == 2 else gates[None, None, :, None]


def default_scale(head_dim: int) -> float:
    """1 / sqrt(head_dim)."""
    return 1.0 / math.sqrt(head_dim)


@contextlib.contextmanager
def watch_choices() -> Iterator[list[Choice]]:
    """Within it, `attend` computes nothing: it notes which kernel it would take and returns zeros. See `explain`."""
    choices: list[Choice] = []
    token = _watched.set(choices)
    try:
        yield choices
    finally:
        _watched.reset(token)
