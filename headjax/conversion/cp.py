"""CP decompositions of stacked products: T_h = P diag(m_h) S^T with P and S shared by all heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from headjax.conversion.products import Products, gram, join, project, qr_of_both


class CP(NamedTuple):
    """T_h = P diag(m_h) S^T: a sum of `rank` outer products (Cordonnier et al. 2020, section 3.3).

    Attributes:
        left: P `[..., rows, rank]`, the shared query projection.
        mixing: M `[..., heads, rank]`.
        right: S `[..., columns, rank]`, the shared key projection.
    """

    left: jax.Array
    mixing: jax.Array
    right: jax.Array

    def products(self) -> Products:
        """Return the same tensor as products: A_h = P diag(m_h), B_h = S."""
        mixed = self.left[..., :, None, :] * self.mixing[..., None, :, :]
        right = self.right[..., :, None, :]
        return Products(mixed, jnp.broadcast_to(right, (*right.shape[:-2], *mixed.shape[-2:])))

    def balanced(self) -> CP:
        """Return the same tensor with three equal norms in every component, which keeps the equations well scaled."""
        norms = [jnp.maximum(jnp.linalg.norm(factor, axis=-2, keepdims=True), 1e-30) for factor in self]
        size = jnp.cbrt(norms[0] * norms[1] * norms[2])
        return CP(*(factor * (size / norm) for factor, norm in zip(self, norms, strict=True)))


class Sweep(NamedTuple):
    """Result of one round of alternating least squares.

    Attributes:
        factors: New factors.
        squared_error: ||T - T'||^2 - ||T||^2, up to rounding.
        squared_size: Sum over components of their squared norms.
    """

    factors: CP
    squared_error: jax.Array
    squared_size: jax.Array


class Damping(NamedTuple):
    """Damping of a sweep, relative to the diagonal of its equations.

    Attributes:
        ridge: Weight of the components' squared norms in the sum that a sweep minimises. Without it components can grow
            without bound while they cancel each other, because the tensors of a given rank form no closed set.
        proximal: Weight of the distance to the old factor. It keeps the equations solvable, moves no fixed point and
            cannot raise the error.
    """

    ridge: jax.Array
    proximal: jax.Array


def sweep(products: Products, factors: CP, damping: Damping) -> Sweep:
    """Run one round of regularised alternating least squares: P, then S, then M, each the best for the other two.

        minimise  sum_h ||A_h B_h^T - P diag(m_h) S^T||^2 + ridge * sum_r ||p_r||^2 ||m_r||^2 ||s_r||^2

    With the others fixed and no ridge, P solves P (M^T M * S^T S) = sum_h A_h (B_h^T S diag(m_h)), and likewise S and M
    (* is by element). The sums run over the factors A_h, B_h and Gram matrices of size rank, which takes rows * heads *
    dim * rank operations; with the tensor itself they would be heads / 2 times as many.
    """
    left, mixing, right = factors
    a, b = products
    mixing_gram, right_gram = gram(mixing), gram(right)
    seen = project(b, right)
    left = _improve(left, join(a, seen * mixing[:, None]), mixing_gram * right_gram, damping)
    left_gram, read = gram(left), project(a, left)
    right = _improve(right, join(b, read * mixing[:, None]), mixing_gram * left_gram, damping)
    right_gram = gram(right)
    inner = (read * project(b, right)).sum(axis=1)
    mixing = _improve(mixing, inner, left_gram * right_gram, damping)
    fitted = left_gram * right_gram * gram(mixing)
    squared_error = fitted.sum() - 2.0 * (inner * mixing).sum()
    return Sweep(CP(left, mixing, right).balanced(), squared_error, jnp.trace(fitted))


def mixing_for(products: Products, left: jax.Array, right: jax.Array) -> jax.Array:
    """Return the best mixing M `[heads, rank]` for given P and S."""
    inner = (project(products.left, left) * project(products.right, right)).sum(axis=1)
    return _improve(jnp.zeros_like(inner), inner, gram(left) * gram(right), Damping(jnp.zeros(()), jnp.asarray(1e-6)))


def _improve(factor: jax.Array, target: jax.Array, normal: jax.Array, damping: Damping) -> jax.Array:
    """Return the X with X normal = target, where `normal` is positive semidefinite up to rounding.

    X is computed as a correction of the old factor, so that rounding in the inverse cannot accumulate in the factor.
    """
    diagonal = jnp.maximum(jnp.diagonal(normal), 1e-30)
    scale = jax.lax.rsqrt(diagonal)
    identity = jnp.eye(normal.shape[0], dtype=normal.dtype)
    scaled = normal * scale[:, None] * scale[None, :] + (damping.ridge + damping.proximal) * identity
    lower = jnp.linalg.cholesky(scaled, symmetrize_input=False)
    whitener = jax.lax.linalg.triangular_solve(lower, identity, left_side=True, lower=True)
    residual = target - factor @ normal - damping.ridge * factor * diagonal[None, :]
    return factor + (residual * scale[None, :]) @ whitener.T @ whitener * scale[None, :]


Start = Callable[[Products, int, jax.Array], CP]
"""Start for one tensor: (products, rank, PRNG key) to factors."""


def concatenation(products: Products, rank: int, key: jax.Array) -> CP:
    """Start from the heads side by side, each with its own dimensions, of which the `rank` largest are kept.

    The singular values of all heads' slices compete for a place. At the full rank heads * dim this is the tensor
    itself, with blocks of ones as mixing (section 3.1 of the paper).
    """
    left, values, right = head_svd(products)
    heads, dim = values.shape
    order = jnp.argsort(-values.reshape(-1), stable=True)[:rank]
    root = jnp.sqrt(values)[None]
    flat_left = (jnp.swapaxes(left, 0, 1) * root).reshape(-1, heads * dim)
    flat_right = (jnp.swapaxes(right, 0, 1) * root).reshape(-1, heads * dim)
    owner = (jnp.arange(heads * dim)[None, :] // dim == jnp.arange(heads)[:, None]).astype(values.dtype)
    return CP(flat_left[:, order], owner[:, order], flat_right[:, order])


def sum_of_heads(products: Products, rank: int, key: jax.Array) -> CP:
    """Start from singular vectors of the sum over heads W_Q W_K^T, which is low rank in figure 1 of the paper.

    Directions beyond its own rank are random combinations, so that every component can fit a part.
    """
    left, right = (factor.reshape(factor.shape[0], -1) for factor in products)
    both = qr_of_both(left[None], right[None])
    (q_left, r_left), (q_right, r_right) = jax.tree.map(lambda array: array[0], both)
    u, values, vt = jnp.linalg.svd(r_left @ r_right.T, full_matrices=False)
    kept = min(rank, values.shape[0])
    root = jnp.sqrt(values[:kept])[None, :]
    first = CP((q_left @ u)[:, :kept] * root, jnp.ones((products.num_heads, kept)), (q_right @ vt.T)[:, :kept] * root)
    if kept < rank:
        more = random(products, rank - kept, key)
        first = CP(*(jnp.concatenate(pair, axis=-1) for pair in zip(first, more, strict=True)))
    return first._replace(mixing=mixing_for(products, first.left, first.right))


def random(products: Products, rank: int, key: jax.Array) -> CP:
    """Start from random combinations of the heads' own dimensions, and a Gaussian mixing."""
    of_left, of_mixing, of_right = jax.random.split(key, 3)
    shape = (*products.left.shape[1:], rank)
    left = join(products.left, jax.random.normal(of_left, shape))
    right = join(products.right, jax.random.normal(of_right, shape))
    return CP(left, jax.random.normal(of_mixing, (shape[0], rank)), right)


STARTS: dict[str, Start] = {"concatenation": concatenation, "svd": sum_of_heads, "random": random}
"""Starts by name."""


def head_svd(products: Products) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return U `[heads, rows, dim]`, s `[heads, dim]`, V `[heads, columns, dim]` of every T_h = U_h diag(s_h) V_h^T."""
    (q_left, r_left), (q_right, r_right) = qr_of_both(*products.by_head())
    u, values, vt = jnp.linalg.svd(r_left @ jnp.swapaxes(r_right, -1, -2), full_matrices=False)
    return q_left @ u, values, q_right @ jnp.swapaxes(vt, -1, -2)
