"""CP decompositions T_h = P diag(m_h) S^T of stacked products: a start, and accelerated alternating least squares."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from headjax.conversion.target import Products, gram, join, project, squared_norm
from headjax.core.fields import Checked, NotNegative, Size
from headjax.core.programs import one_by_one


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
    """Result of one round of alternating least squares."""

    factors: CP
    squared_error: jax.Array  # ||T - T'||^2 - ||T||^2, up to rounding
    squared_size: jax.Array  # sum over components of their squared norms


class Damping(NamedTuple):
    """Damping of a sweep, relative to the diagonal of its equations."""

    # Weight of the components' squared norms. Without it they can grow without bound while they cancel each other.
    ridge: jax.Array
    # Weight of the distance to the old factor, which keeps the equations solvable and moves no fixed point.
    proximal: jax.Array


def sweep(products: Products, factors: CP, damping: Damping) -> Sweep:
    """Run one round of regularised alternating least squares: P, then S, then M, each the best for the other two."""
    # minimise  sum_h ||A_h B_h^T - P diag(m_h) S^T||^2 + ridge * sum_r ||p_r||^2 ||m_r||^2 ||s_r||^2
    # Without the ridge P solves P (M^T M * S^T S) = sum_h A_h (B_h^T S diag(m_h)), * by element; likewise S and M.
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


def _improve(factor: jax.Array, target: jax.Array, normal: jax.Array, damping: Damping) -> jax.Array:
    """Return the X with X normal = target, as a correction of the old factor, in which rounding cannot accumulate."""
    diagonal = jnp.maximum(jnp.diagonal(normal), 1e-30)
    scale = jax.lax.rsqrt(diagonal)
    identity = jnp.eye(normal.shape[0], dtype=normal.dtype)
    scaled = normal * scale[:, None] * scale[None, :] + (damping.ridge + damping.proximal) * identity
    lower = jnp.linalg.cholesky(scaled, symmetrize_input=False)
    whitener = jax.lax.linalg.triangular_solve(lower, identity, left_side=True, lower=True)
    residual = target - factor @ normal - damping.ridge * factor * diagonal[None, :]
    return factor + (residual * scale[None, :]) @ whitener.T @ whitener * scale[None, :]


def concatenation(products: Products, rank: int) -> CP:
    """Return the heads' dimensions side by side, the `rank` of the largest singular values (section 3.1)."""
    left, values, right = head_svd(products)
    heads, dim = values.shape
    order = jnp.argsort(-values.reshape(-1), stable=True)[:rank]
    root = jnp.sqrt(values)[None]
    flat_left = (jnp.swapaxes(left, 0, 1) * root).reshape(-1, heads * dim)
    flat_right = (jnp.swapaxes(right, 0, 1) * root).reshape(-1, heads * dim)
    owner = (jnp.arange(heads * dim)[None, :] // dim == jnp.arange(heads)[:, None]).astype(values.dtype)
    return CP(flat_left[:, order], owner[:, order], flat_right[:, order])


def head_svd(products: Products) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return U `[heads, rows, dim]`, s `[heads, dim]`, V `[heads, columns, dim]` of every T_h = U_h diag(s_h) V_h^T."""

    def of_head(left: jax.Array, right: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        (q_left, r_left), (q_right, r_right) = jnp.linalg.qr(left), jnp.linalg.qr(right)
        u, values, vt = jnp.linalg.svd(r_left @ r_right.T, full_matrices=False)
        return q_left @ u, values, q_right @ vt.T

    factors: tuple[jax.Array, jax.Array, jax.Array] = one_by_one(of_head, *products.by_head())
    return factors


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
    """

    sweeps: Size = 300
    tolerance: NotNegative = 1e-4


class Fit(NamedTuple):
    """Decomposition of one tensor, or of several along a leading axis."""

    factors: CP
    errors: jax.Array  # [..., sweeps], ||T - T'|| / ||T|| after each, the last one repeated; below 1e-3 rounding


class _State(NamedTuple):
    """State between two sweeps: the best point x, the extrapolated point y, and the numbers of the next step."""

    best: CP
    point: CP
    value: jax.Array  # squared error of x over ||T||^2
    size: jax.Array  # squared norms of its components over ||T||^2
    momentum: jax.Array
    proximal: jax.Array
    errors: jax.Array
    sweeps: jax.Array


_WINDOW = 10
_RIDGE = 1e-3
"""Weight of the components' squared norms relative to the squared error reached so far, so that it vanishes where the
fit is exact; see `Damping`."""
_PROXIMAL = 1e-6
"""Smallest proximal weight. It grows tenfold while equations are singular."""
_ROUNDING = 1e-5
"""Largest rise of an error, relative to ||T||^2, that rounding alone can cause."""


def solve(products: Products, start: CP, solver: Solver) -> Fit:
    """Improve the start of one tensor until the tolerance or the limit of sweeps is met."""
    norm = jnp.maximum(squared_norm(products), jnp.finfo(jnp.float32).tiny)

    def step(state: _State) -> _State:
        ridge = _RIDGE * jnp.clip(state.value, 0.0, 1.0)
        swept = sweep(products, state.point, Damping(ridge, state.proximal))
        value, size = 1.0 + swept.squared_error / norm, swept.squared_size / norm
        accepted = value + ridge * size <= state.value + ridge * state.size + _ROUNDING
        # Momentum restarts where the step from the extrapolated point opposes the step from the best one.
        steps = swept.factors, state.point, state.best
        inner = jax.tree.map(lambda new, point, best: ((new - point) * (new - best)).sum(), *steps)
        settled = accepted & ~(inner.left + inner.mixing + inner.right < 0.0)
        momentum = jnp.where(settled, (1.0 + jnp.sqrt(1.0 + 4.0 * state.momentum**2)) / 2.0, 1.0)
        beta = jnp.where(settled, (state.momentum - 1.0) / momentum, 0.0)
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
            proximal=jnp.where(singular, state.proximal * 10.0, jnp.maximum(state.proximal * 0.8, _PROXIMAL)),
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
    dtype = start.left.dtype
    large = jnp.asarray(1e30, dtype)
    state = _State(
        best=start,
        point=start,
        value=large,
        size=large,
        momentum=jnp.ones((), dtype),
        proximal=jnp.asarray(_PROXIMAL, dtype),
        errors=jnp.full((solver.sweeps,), jnp.inf, dtype),
        sweeps=jnp.zeros((), jnp.int32),
    )
    state = jax.lax.while_loop(unfinished, step, state)
    return Fit(state.best, state.errors)


@functools.partial(jax.jit, static_argnums=(1, 2))
def fit_layers(products: Products, rank: int, solver: Solver) -> Fit:
    """Approximate every layer's T_h = A_h B_h^T by the nearest P diag(m_h) S^T of this rank, in float32."""

    def one_layer(layer: Products) -> Fit:
        # A tensor of norm one makes damping and tolerance mean the same for every layer.
        norm = jnp.sqrt(jnp.maximum(squared_norm(layer), jnp.finfo(layer.left.dtype).tiny))
        inner = Products(layer.left / jnp.sqrt(norm), layer.right / jnp.sqrt(norm))
        fit = solve(inner, concatenation(inner, rank), solver)
        return fit._replace(factors=fit.factors._replace(mixing=fit.factors.mixing * norm))

    layers = products.left.shape[0]
    with jax.default_matmul_precision("highest"):
        # One layer keeps a CPU busy and holds least memory; accelerators want all at once.
        return jax.lax.map(one_layer, products, batch_size=None if jax.default_backend() == "cpu" else layers)
