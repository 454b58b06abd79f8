"""Find CP decompositions of layers of one shape: accelerated alternating least squares from one or more starts."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from headjax.conversion.cp import CP, STARTS, Damping, sweep
from headjax.conversion.products import Products, one_blas_thread, qr_of_both, squared_norm
from headjax.core.errors import ConfigError, require
from headjax.core.fields import Checked, NotNegative, Size
from headjax.core.serialize import unknown_name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Solver(Checked):
    """Alternating least squares from an extrapolated point.

        y_k = x_k + beta_k (x_k - x_(k-1)),   x_(k+1) = sweep(y_k),   beta_k Nesterov's, as if for gradient descent

    Momentum restarts with beta = 0 whenever it points against the step just taken (O'Donoghue and Candes 2015) or the
    error rises beyond rounding (Mitchell, Ye and De Sterck 2020 study such schemes for CP). Extrapolation costs next to
    nothing, and the number of sweeps to a given error falls several times.

    Attributes:
        sweeps: Largest number of sweeps.
        tolerance: Stop once ten sweeps together lower the relative error by less than this share.
        acceleration: Whether to extrapolate; False is plain alternating least squares.
        ridge: Weight of the components' squared norms relative to the squared error reached so far, so that it vanishes
            where the fit is exact; see `headjax.conversion.cp.Damping`.
        proximal: Smallest proximal weight. It grows tenfold while equations are singular.
    """

    sweeps: Size = 300
    tolerance: NotNegative = 1e-4
    acceleration: bool = True
    ridge: NotNegative = 1e-3
    proximal: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0.0 < self.proximal < 1.0, "proximal", f"must be between 0 and 1, got {self.proximal}")


class Fit(NamedTuple):
    """Decomposition of one tensor, or of several along a leading axis.

    Attributes:
        factors: Best factors found.
        errors: `[..., sweeps]`, relative error ||T - T'|| / ||T|| after every sweep; the last one repeats after the
            stop. Values below about 1e-3 are rounding; `headjax.conversion.products.relative_distance` is exact.
        sweeps: `[...]`, number of sweeps taken.
    """

    factors: CP
    errors: jax.Array
    sweeps: jax.Array


class _State(NamedTuple):
    """State between two sweeps: the best point x, the extrapolated point y, and the numbers of the next step.

    `value` is the squared error of x and `size` the squared norms of its components, both relative to ||T||^2.
    """

    best: CP
    point: CP
    value: jax.Array
    size: jax.Array
    momentum: jax.Array
    proximal: jax.Array
    errors: jax.Array
    sweeps: jax.Array


_WINDOW = 10
_ROUNDING = 1e-5
"""How far, relative to ||T||^2, an error may seem to rise by rounding alone."""


def solve(products: Products, start: CP, solver: Solver) -> Fit:
    """Improve the start of one tensor until the tolerance or the limit of sweeps is met."""
    norm = jnp.maximum(squared_norm(products), jnp.finfo(jnp.float32).tiny)

    def step(state: _State) -> _State:
        ridge = solver.ridge * jnp.clip(state.value, 0.0, 1.0)
        swept = sweep(products, state.point, Damping(ridge, state.proximal))
        value, size = 1.0 + swept.squared_error / norm, swept.squared_size / norm
        accepted = value + ridge * size <= state.value + ridge * state.size + _ROUNDING
        settled = accepted & ~_against(swept.factors, state.point, state.best)
        momentum = jnp.where(settled, (1.0 + jnp.sqrt(1.0 + 4.0 * state.momentum**2)) / 2.0, 1.0)
        beta = jnp.where(settled & solver.acceleration, (state.momentum - 1.0) / momentum, 0.0)
        best = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), swept.factors, state.best)
        value, size = jnp.where(accepted, value, state.value), jnp.where(accepted, size, state.size)
        singular = ~accepted & (state.momentum == 1.0)
        error = jnp.sqrt(jnp.maximum(value, 0.0))
        return _State(
            best=best,
            point=jax.tree.map(lambda new, old: new + beta * (new - old), best, state.best),
            value=value,
            size=size,
            momentum=momentum,
            proximal=jnp.where(singular, state.proximal * 10.0, jnp.maximum(state.proximal * 0.8, solver.proximal)),
            # Later sweeps overwrite the rest, so that the last error repeats to the end.
            errors=jnp.where(jnp.arange(solver.sweeps) >= state.sweeps, error, state.errors),
            sweeps=state.sweeps + 1,
        )

    def unfinished(state: _State) -> jax.Array:
        count = state.sweeps
        before = state.errors[jnp.maximum(count - 1 - _WINDOW, 0)]
        gained = before - state.errors[jnp.maximum(count - 1, 0)]
        stalled = (count > _WINDOW) & (gained < solver.tolerance * before)
        return (count < solver.sweeps) & ~stalled

    start = start.balanced()
    one, large = jnp.ones(()), jnp.asarray(1e30)
    state = _State(
        best=start,
        point=start,
        value=large,
        size=large,
        momentum=one,
        proximal=one * solver.proximal,
        errors=jnp.full((solver.sweeps,), jnp.inf),
        sweeps=jnp.zeros((), jnp.int32),
    )
    state = jax.lax.while_loop(unfinished, step, state)
    return Fit(state.best, state.errors, state.sweeps)


def _against(new: CP, point: CP, best: CP) -> jax.Array:
    """Return whether the step from the extrapolated point opposes the step from the best one."""
    products = jax.tree.map(lambda n, p, b: ((n - p) * (n - b)).sum(), new, point, best)
    return sum(products, jnp.zeros(())) < 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search(Checked):
    """Starts and solver; of all starts the best is kept, layer by layer.

    Attributes:
        starts: Names in `headjax.conversion.cp.STARTS`, tried one after another. A name that occurs more than once is
            tried with another random seed each time.
        solver: Solver that improves each start.
    """

    starts: tuple[str, ...] = ("concatenation",)
    solver: Solver = Solver()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.starts) >= 1, "starts", "name at least one")
        for name in self.starts:
            if name not in STARTS:
                raise ConfigError(f"starts: {unknown_name('start', name, STARTS)}")


def decompose(products: Products, rank: int, *, search: Search = Search(), seed: int = 0) -> Fit:
    """Approximate every layer's T_h = A_h B_h^T by P diag(m_h) S^T of the given rank, in float32.

        minimise  sum_h ||A_h B_h^T - P diag(m_h) S^T||^2

    Args:
        products: A `[layers, rows, heads, dim]` and B `[layers, columns, heads, dim]`.
        rank: Number of components, at most heads * dim, at which the concatenated factors are exact.
        search: Starts and solver.
        seed: Seed of random starts.

    Raises:
        ConfigError: The rank is out of range.
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
    """Return an orthonormal basis `[rows, size]` of the columns of A and of B, and the factors in it."""
    heads, dim = products.left.shape[1:]
    if max(factor.shape[0] for factor in products) <= heads * dim:
        left, right = ((jnp.eye(factor.shape[0], dtype=factor.dtype), factor) for factor in products)
        return left, right
    both = qr_of_both(*(factor.reshape(1, -1, heads * dim) for factor in products))
    left, right = ((basis[0], inner[0].reshape(-1, heads, dim)) for basis, inner in both)
    return left, right


def _better(one: Fit, other: Fit) -> Fit:
    """Return the fit of lower error, layer by layer."""
    first = one.errors[:, -1] <= other.errors[:, -1]

    def choose(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(first.reshape(-1, *(1,) * (a.ndim - 1)), a, b)

    return jax.tree.map(choose, one, other)
