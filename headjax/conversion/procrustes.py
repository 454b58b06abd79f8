"""Rotations that bring several matrices into line (orthogonal and generalised Procrustes)."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

Align = Callable[[jax.Array, jax.Array], jax.Array]
"""The rotation R `[dim, dim]` of some family that best takes `X [rows, dim]` to `Y [rows, dim]`: min ||X R - Y||."""


def orthogonal(source: jax.Array, target: jax.Array) -> jax.Array:
    """The orthogonal R that minimises ||X R - Y|| (Schoenemann 1966): U V^T of X^T Y = U diag(s) V^T."""
    u, _, vt = jnp.linalg.svd(source.T @ target, full_matrices=False)
    return u @ vt


def pairwise(pairs: tuple[tuple[int, int], ...]) -> Align:
    """Rotations that turn each pair of dimensions by its own angle and leave other dimensions alone.

    They are the ones that commute with rotary embeddings, whose pairs turn with the position; dimensions outside the
    pairs mix freely among themselves, because no position turns them.

    Args:
        pairs: the pairs (first, second) of dimensions that turn together.
    """
    first, second = (jnp.asarray(side, jnp.int32) for side in zip(*pairs, strict=True))
    turning = {dimension for pair in pairs for dimension in pair}

    def align(source: jax.Array, target: jax.Array) -> jax.Array:
        dim = source.shape[1]
        inner = source.T @ target
        cos, sin = inner[first, first] + inner[second, second], inner[first, second] - inner[second, first]
        size = jnp.sqrt(cos**2 + sin**2)
        cos, sin = jnp.where(size > 0, cos / size, 1.0), jnp.where(size > 0, sin / size, 0.0)
        rotation = jnp.zeros((dim, dim), source.dtype)
        rotation = rotation.at[first, first].set(cos).at[second, second].set(cos)
        rotation = rotation.at[first, second].set(sin).at[second, first].set(-sin)
        still = jnp.asarray([d for d in range(dim) if d not in turning], jnp.int32)
        if still.size:
            rotation = rotation.at[still[:, None], still[None, :]].set(orthogonal(source[:, still], target[:, still]))
        return rotation

    return align


@functools.partial(jax.jit, static_argnums=(1, 2))
def generalised(matrices: jax.Array, align: Align = orthogonal, sweeps: int = 30) -> jax.Array:
    """Rotations R_i that bring all matrices closest to their mean.

        minimise  sum_i ||X_i R_i - mean_j X_j R_j||^2

    Each matrix in turn is aligned to the mean of the others (Gower 1975; ten Berge 1977), which never raises the sum.
    The first round aligns to the first matrix.

    Args:
        matrices: X `[count, rows, dim]`.
        align: the family of rotations.
        sweeps: rounds.

    Returns:
        R `[count, dim, dim]`.
    """
    count = matrices.shape[0]
    with jax.default_matmul_precision("highest"):
        first = jax.vmap(align, (0, None))(matrices, matrices[0])

        def turn(i: int, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            rotations, total = state
            matrix = matrices[i]
            others = total - matrix @ rotations[i]
            rotation = align(matrix, others)
            return rotations.at[i].set(rotation), others + matrix @ rotation

        def one_round(_: int, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return jax.lax.fori_loop(0, count, turn, state)

        total = jnp.einsum("nrd,nde->re", matrices, first)
        return jax.lax.fori_loop(0, sweeps, one_round, (first, total))[0]
