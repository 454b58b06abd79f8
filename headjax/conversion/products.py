"""Stacks of matrix products A_h B_h^T, one per head, that are never multiplied out together."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Products(NamedTuple):
    """The tensor of slices T_h = A_h B_h^T, held as its factors.

    Every formulation's logits and outputs are such stacks: W_Q^h W_K^hT says which query and key meet, W_V^h W_O^h what
    is read and written. Two layers compute alike exactly when their slices are equal.

    Attributes:
        left: A `[..., rows, heads, dim]`.
        right: B `[..., columns, heads, dim]`.
    """

    left: jax.Array
    right: jax.Array

    @property
    def num_heads(self) -> int:
        """Number of slices."""
        return self.left.shape[-2]

    @property
    def max_rank(self) -> int:
        """The rank at which the factors themselves, side by side, are an exact decomposition: heads * dim."""
        return self.num_heads * self.left.shape[-1]

    def by_head(self) -> tuple[jax.Array, jax.Array]:
        """A and B as `[..., heads, rows, dim]` and `[..., heads, columns, dim]`."""
        return jnp.swapaxes(self.left, -3, -2), jnp.swapaxes(self.right, -3, -2)

    def matrix(self, head: int) -> jax.Array:
        """One slice T_h `[..., rows, columns]`."""
        return self.left[..., head, :] @ jnp.swapaxes(self.right[..., head, :], -1, -2)


def squared_norm(products: Products) -> jax.Array:
    """sum_h ||A_h B_h^T||^2 over one tensor, from the Gram matrices: sum_h <A_h^T A_h, B_h^T B_h>."""
    left, right = products.by_head()
    return (gram(left) * gram(right)).sum()


def squared_distance(products: Products, others: Products) -> jax.Array:
    """sum_h ||T_h - T'_h||^2 of two tensors of equal shape.

    One slice at a time and as a plain difference: an expansion into inner products would lose everything below the
    square root of the rounding error.
    """
    left, right = products.by_head()
    other_left, other_right = others.by_head()

    def one_head(factors: tuple[jax.Array, ...]) -> jax.Array:
        a, b, c, d = factors
        return jnp.square(a @ b.T - c @ d.T).sum()

    return jax.lax.map(one_head, (left, right, other_left, other_right)).sum()


@jax.jit
def relative_distance(products: Products, others: Products) -> jax.Array:
    """||T - T'|| / ||T|| in the Frobenius norm; 0 where both are zero."""
    with jax.default_matmul_precision("highest"):
        distance, norm = squared_distance(products, others), squared_norm(products)
    return jnp.sqrt(distance / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))


def gram(matrix: jax.Array) -> jax.Array:
    """M^T M over the last two dimensions."""
    return jnp.swapaxes(matrix, -1, -2) @ matrix


def join(factors: jax.Array, mixed: jax.Array) -> jax.Array:
    """sum_h F_h X_h: `[rows, heads, dim]` by `[heads, dim, rank]` to `[rows, rank]`."""
    return factors.reshape(factors.shape[0], -1) @ mixed.reshape(-1, mixed.shape[-1])


def project(factors: jax.Array, basis: jax.Array) -> jax.Array:
    """F_h^T X of every head: `[rows, heads, dim]` and `[rows, rank]` to `[heads, dim, rank]`."""
    flat = factors.reshape(factors.shape[0], -1).T @ basis
    return flat.reshape(*factors.shape[1:], basis.shape[-1])


def qr_of_both(left: jax.Array, right: jax.Array) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    """(Q, R) of `[heads, rows, dim]` and of `[heads, columns, dim]`, in one batched call.

    Independent factorisations inside a jitted function run at the same time on CPUs, where two batched ones of BERT's
    size have been seen never to finish (jax 0.10.2, two cores). Zero rows change neither R nor the other rows of Q.
    """
    rows, columns = left.shape[1], right.shape[1]
    longest = max(rows, columns)
    padded = [jnp.pad(side, ((0, 0), (0, longest - side.shape[1]), (0, 0))) for side in (left, right)]
    q, r = jnp.linalg.qr(jnp.concatenate(padded))
    heads = left.shape[0]
    return (q[:heads, :rows], r[:heads]), (q[heads:, :columns], r[heads:])
