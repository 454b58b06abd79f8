"""Accelerated alternating least squares for CP decompositions, stopped by a tolerance."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from headjax.conversion.cp import CP, Damping, sweep
from headjax.conversion.products import Products, squared_norm
from headjax.core.errors import require, require_positive


@dataclasses.dataclass(frozen=True, kw_only=True)
class Solver:
    """Alternating least squares from an extrapolated point.

        y_k = x_k + beta_k (x_k - x_(k-1)),   x_(k+1) = sweep(y_k),   beta_k Nesterov's, as if for gradient descent

    Restarted with beta = 0 whenever the momentum points against the step just taken (O'Donoghue and Candes 2015) or the
    error rises beyond rounding (Mitchell, Ye and De Sterck 2020 study such schemes for CP). A sweep costs what it does
    without; the number of sweeps to a given error falls several times.

    Attributes:
        sweeps: upper limit of sweeps.
        tolerance: stop once ten sweeps together lower the relative error by less than this.
        acceleration: False is plain alternating least squares.
        ridge: weight of the components' squared norms, relative to the squared error reached so far, so that it
            vanishes where the fit is exact; see `headjax.conversion.cp.Damping`.
        proximal: smallest proximal term. It grows tenfold while equations are singular.
    """

    sweeps: int = 300
    tolerance: float = 1e-4
    acceleration: bool = True
    ridge: float = 1e-3
    proximal: float = 1e-6

    def __post_init__(self) -> None:
        require_positive(self, "sweeps")
        require(self.tolerance >= 0.0, "tolerance", f"must not be negative, got {self.tolerance}")
        require(self.ridge >= 0.0, "ridge", f"must not be negative, got {self.ridge}")
        require(0.0 < self.proximal < 1.0, "proximal", f"must be between 0 and 1, got {self.proximal}")


class Fit(NamedTuple):
    """A decomposition of one tensor, or of several along a leading axis.

    Attributes:
        factors: the best factors met.
        errors: `[..., sweeps]` relative error ||T - T'|| / ||T|| after every sweep, the last one repeated after the
            stop. Values below about 1e-3 are rounding; `headjax.conversion.products.relative_distance` is exact.
        sweeps: `[...]` number of sweeps taken.
    """

    factors: CP
    errors: jax.Array
    sweeps: jax.Array


class _State(NamedTuple):
    """Between two sweeps: the best point x, the extrapolated one y, and what the next step needs.

    `value` is the squared error of x and `size` its components' squared norms, both relative to ||T||^2.
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
    """Improves a start until the tolerance or the limit of sweeps is met. One tensor; vmap or map it for several."""
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
    """Whether the step from the extrapolated point opposes the step from the best one."""
    products = jax.tree.map(lambda n, p, b: ((n - p) * (n - b)).sum(), new, point, best)
    return sum(products, jnp.zeros(())) < 0.0
