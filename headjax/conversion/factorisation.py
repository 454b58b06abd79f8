"""CP decompositions of whole models: all layers of one shape in one compiled call, from one or several starts."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from headjax.conversion.blas import one_blas_thread
from headjax.conversion.cp import CP
from headjax.conversion.products import Products, qr_of_both, squared_norm
from headjax.conversion.solver import Fit, Solver, solve
from headjax.conversion.starts import STARTS
from headjax.core.errors import ConfigError, require
from headjax.core.serialize import unknown_name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """Where to start and how to improve; the best of all starts is kept, layer by layer.

    Attributes:
        starts: names in `headjax.conversion.starts.STARTS`, tried one after another. A name given more than once is
            tried with another random seed each time.
        solver: how each start is improved.
    """

    starts: tuple[str, ...] = ("concatenation",)
    solver: Solver = Solver()

    def __post_init__(self) -> None:
        require(len(self.starts) >= 1, "starts", "name at least one")
        for name in self.starts:
            if name not in STARTS:
                raise ConfigError(f"starts: {unknown_name('start', name, STARTS)}")


def decompose(products: Products, rank: int, *, search: Search = Search(), seed: int = 0) -> Fit:
    """Approximates every layer's T_h = A_h B_h^T by P diag(m_h) S^T of the given rank, in float32.

        minimise  sum_h ||A_h B_h^T - P diag(m_h) S^T||^2

    Args:
        products: A `[layers, rows, heads, dim]` and B `[layers, columns, heads, dim]`.
        rank: number of components, at most heads * dim, where the concatenated factors are exact.
        search: starts and solver.
        seed: of random starts.

    Raises:
        ConfigError: the rank is none that the products have.
    """
    require(1 <= rank <= products.max_rank, "rank", f"must be from 1 to heads * dim = {products.max_rank}, got {rank}")
    keys = [jax.random.fold_in(jax.random.key(seed), i) for i in range(len(search.starts))]
    with one_blas_thread():
        fits = [_fit(products, rank, name, search.solver, key) for name, key in zip(search.starts, keys, strict=True)]
        return jax.block_until_ready(functools.reduce(_better, fits))


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _fit(products: Products, rank: int, start: str, solver: Solver, key: jax.Array) -> Fit:
    def one_layer(layer: Products) -> Fit:
        # Best factors lie in the span of the heads' own, so only coordinates in it are searched; and a tensor of norm
        # one makes damping and tolerance mean the same for every layer.
        (left_basis, left), (right_basis, right) = _spans(layer)
        norm = jnp.sqrt(jnp.maximum(squared_norm(Products(left, right)), jnp.finfo(left.dtype).tiny))
        inner = Products(left / jnp.sqrt(norm), right / jnp.sqrt(norm))
        fit = solve(inner, STARTS[start](inner, rank, key), solver)
        found = fit.factors
        return fit._replace(factors=CP(left_basis @ found.left, found.mixing * norm, right_basis @ found.right))

    layers = products.left.shape[0]
    with jax.default_matmul_precision("highest"):
        # One layer keeps a CPU busy and holds least memory; accelerators want all at once.
        return jax.lax.map(one_layer, products, batch_size=1 if jax.default_backend() == "cpu" else layers)


def _spans(products: Products) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    """For A and for B an orthonormal basis `[rows, size]` of their columns, and the factors in it."""
    heads, dim = products.left.shape[1:]
    if max(factor.shape[0] for factor in products) <= heads * dim:
        left, right = ((jnp.eye(factor.shape[0], dtype=factor.dtype), factor) for factor in products)
        return left, right
    both = qr_of_both(*(factor.reshape(1, -1, heads * dim) for factor in products))
    left, right = ((basis[0], inner[0].reshape(-1, heads, dim)) for basis, inner in both)
    return left, right


def _better(one: Fit, other: Fit) -> Fit:
    """The fit of lower error, layer by layer."""
    first = one.errors[:, -1] <= other.errors[:, -1]

    def choose(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(first.reshape(-1, *(1,) * (a.ndim - 1)), a, b)

    return jax.tree.map(choose, one, other)
