"""Where the search for a CP decomposition starts."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from headjax.conversion.cp import CP, mixing_for
from headjax.conversion.products import Products, join, qr_of_both

Start = Callable[[Products, int, jax.Array], CP]
"""A start of one tensor: (products, rank, PRNG key) to factors."""


def concatenation(products: Products, rank: int, key: jax.Array) -> CP:
    """The heads side by side, each with its own dimensions, of which the `rank` largest are kept.

    Each head's slice is written as its singular value decomposition; all heads' singular values compete. At the full
    rank heads * dim this is the tensor itself, with blocks of ones as mixing (section 3.1 of the paper).
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
    """Singular vectors of the sum over heads W_Q W_K^T, the product that the paper's figure 1 finds to be low rank.

    Directions beyond its own rank are random combinations, so that every component has something to fit.
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
    """Random combinations of the heads' own dimensions, and a Gaussian mixing."""
    of_left, of_mixing, of_right = jax.random.split(key, 3)
    shape = (*products.left.shape[1:], rank)
    left = join(products.left, jax.random.normal(of_left, shape))
    right = join(products.right, jax.random.normal(of_right, shape))
    return CP(left, jax.random.normal(of_mixing, (shape[0], rank)), right)


STARTS: dict[str, Start] = {"concatenation": concatenation, "svd": sum_of_heads, "random": random}
"""Starts by name."""


def head_svd(products: Products) -> tuple[jax.Array, jax.Array, jax.Array]:
    """T_h = U_h diag(s_h) V_h^T of every head: U `[heads, rows, dim]`, s `[heads, dim]`, V `[heads, columns, dim]`."""
    (q_left, r_left), (q_right, r_right) = qr_of_both(*products.by_head())
    u, values, vt = jnp.linalg.svd(r_left @ jnp.swapaxes(r_right, -1, -2), full_matrices=False)
    return q_left @ u, values, q_right @ jnp.swapaxes(vt, -1, -2)
