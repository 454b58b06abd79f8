"""Shared subspaces in closed form: Tucker bases of stacked products, and the best low-rank factor of one matrix."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from headjax.conversion.products import Products, gram


class TuckerFactors(NamedTuple):
    """T_h = U C_h V^T with bases U and V shared by all heads and a full matrix per head.

    Attributes:
        left: U `[rows, left_rank]`, orthonormal columns.
        core: C `[heads, left_rank, right_rank]`.
        right: V `[columns, right_rank]`, orthonormal columns.
    """

    left: jax.Array
    core: jax.Array
    right: jax.Array

    def products(self) -> Products:
        """The same tensor as products: A_h = U C_h, B_h = V."""
        mixed = jnp.einsum("dr,hrs->dhs", self.left, self.core)
        right = self.right[:, None, :]
        return Products(mixed, jnp.broadcast_to(right, (right.shape[0], *mixed.shape[1:])))


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def tucker(products: Products, left_rank: int, right_rank: int, sweeps: int = 10) -> TuckerFactors:
    """Bases for the stacked T_h = A_h B_h^T of one layer.

        minimise  sum_h ||A_h B_h^T - U C_h V^T||^2   over orthonormal U, V;   C_h = U^T A_h B_h^T V

    Starts from the leading eigenvectors of sum_h T_h T_h^T and then of what they keep (sequentially truncated
    higher-order SVD, at most sqrt(2) times the best error; Vannieuwenhoven, Vandebril and Meerbergen 2012) and takes
    each basis in turn as the best for the other (higher-order orthogonal iteration; De Lathauwer, De Moor and
    Vandewalle 2000), which never raises the error. Exact when the ranks reach those of [A_1, ..., A_H] and
    [B_1, ..., B_H].

    Args:
        products: A `[rows, heads, dim]`, B `[columns, heads, dim]`.
        left_rank, right_rank: sizes of the bases.
        sweeps: rounds of orthogonal iteration after the start.
    """
    with jax.default_matmul_precision("highest"):
        left, right = products.by_head()
        u = _leading(_weighted(left, gram(right)), left_rank)
        v = _leading(_weighted(right, gram(_inside(left, u))), right_rank)

        def round_of(_: int, bases: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            u, v = bases
            u = _leading(_weighted(left, gram(_inside(right, v))), left_rank)
            v = _leading(_weighted(right, gram(_inside(left, u))), right_rank)
            return u, v

        u, v = jax.lax.fori_loop(0, sweeps, round_of, (u, v))
        core = _inside(left, u) @ jnp.swapaxes(_inside(right, v), -1, -2)
        return TuckerFactors(u, core, v)


@functools.partial(jax.jit, static_argnums=(1,))
def low_rank(matrix: jax.Array, rank: int) -> tuple[jax.Array, jax.Array]:
    """The best X Y of the given rank to a `[rows, columns]` matrix: X `[rows, rank]` orthonormal, Y `[rank, columns]`.

    Columns beyond the matrix's own size are zero.
    """
    with jax.default_matmul_precision("highest"):
        u, values, vt = jnp.linalg.svd(matrix, full_matrices=False)
        left, right = u[:, :rank], values[:rank, None] * vt[:rank]
        missing = rank - left.shape[1]
        return jnp.pad(left, ((0, 0), (0, missing))), jnp.pad(right, ((0, missing), (0, 0)))


def _weighted(factors: jax.Array, grams: jax.Array) -> jax.Array:
    """sum_h F_h G_h F_h^T: `[heads, rows, dim]` and `[heads, dim, dim]` to `[rows, rows]`."""
    rows = factors.shape[1]
    weighted, plain = (jnp.swapaxes(array, 0, 1).reshape(rows, -1) for array in (factors @ grams, factors))
    return weighted @ plain.T


def _inside(factors: jax.Array, basis: jax.Array) -> jax.Array:
    """Basis^T F_h, `[heads, rank, dim]`."""
    return jnp.einsum("dr,hde->hre", basis, factors)


def _leading(matrix: jax.Array, rank: int) -> jax.Array:
    """Leading eigenvectors of a symmetric matrix, `[rows, rank]`."""
    return jnp.linalg.eigh(matrix)[1][:, ::-1][:, :rank]
