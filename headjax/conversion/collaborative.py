"""Multi-head to collaborative attention by CP decompositions T_h = P diag(m_h) S^T.

A decomposition starts from the heads' largest singular values; alternating least squares, accelerated, improve it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from headjax.conversion.calibration import Root, covariance_root
from headjax.conversion.target import ConversionInput, Products, Target, gram, head_svd, multi_head_of, squared_norm
from headjax.core.errors import require
from headjax.core.fields import Checked, NotNegative, Size
from headjax.core.tensors import Params
from headjax.nn import CollaborativeAttention, Kind
from headjax.nn.module import AttentionModule

SWEEPS = 300
"""Largest number of sweeps by default."""


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

    sweeps: Size = SWEEPS
    tolerance: NotNegative = 1e-4


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToCollaborative(Target):
    """All heads share one query and one key projection (Cordonnier et al. 2020, section 3.3).

        W_Q^h W_K^hT ~ W_Q diag(m_h) W_K^T,   W_Q [width, shared_dim], W_K [memory width, shared_dim]

    The logits stay divided by the square root of the original head_dim at every shared_dim. b_K vanishes in the
    softmax and b_Q becomes the content bias W_K^h b_Q^h, both exactly. At shared_dim = num_heads * head_dim the
    function stays the same: the heads' own weights stand side by side, mixed by blocks of ones. Below that size a
    calibrated conversion minimises the error of centred logits, any other the error of the weights.

    Layers whose keys rotate with their positions are refused: a map across rotary frequencies does not commute with
    rotation.

    Attributes:
        shared_dim: Size of the shared queries and keys, at most num_heads * head_dim.
        solver: Solver of the decomposition.
    """

    name: ClassVar[str] = "collaborative"

    shared_dim: Size
    solver: Solver = Solver()

    def check(self, attention: Kind, width: int, memory_width: int) -> None:
        source = multi_head_of(attention)
        require(source.rotary is None, "rotary", "rotates between W_Q and W_K, so they cannot be shared")
        most, size = source.num_heads * source.head_dim, self.shared_dim
        require(size <= most, "shared_dim", f"must be from 1 to num_heads * head_dim = {most}, got {size}")

    def convert(self, layers: Sequence[ConversionInput], seed: int) -> list[AttentionModule]:
        params: dict[int, Params] = {}
        # Fewer sweeps than the default ones are a number that a program takes.
        most = dataclasses.replace(
            self, solver=dataclasses.replace(self.solver, sweeps=max(self.solver.sweeps, SWEEPS))
        )
        same_shapes: dict[Any, list[int]] = {}  # layers that one program converts, on an accelerator all at once
        for i, layer in enumerate(layers):
            alike = i if jax.default_backend() == "cpu" else (layer.attention.structure(), layer.module.memory_width)
            same_shapes.setdefault(alike, []).append(i)
        for members in same_shapes.values():
            converted = _converted(most, self.solver.sweeps, [layers[i].traceable() for i in members])
            params |= dict(zip(members, converted, strict=True))
        return [self._layer(layer, params[i]) for i, layer in enumerate(layers)]

    def _is_exact(self, attention: Kind) -> bool:
        return bool(self.shared_dim == attention.num_heads * attention.head_dim)

    def _layer(self, layer: ConversionInput, params: Params) -> AttentionModule:
        config = layer.attention.become(
            CollaborativeAttention,
            shared_dim=self.shared_dim,
            value_dim=layer.attention.values,
            projection_bias=False,
            content_bias="content_bias" in params,
            value_bias=layer.attention.projection_bias,
        )
        return layer.module.like(config, params)


@functools.partial(jax.jit, static_argnums=0)
def _converted(target: ToCollaborative, sweeps: jax.Array, layers: Sequence[ConversionInput]) -> list[Params]:
    """Return the arrays of layers of equal shapes, converted in one program."""
    products = [scaled_query_key(layer) for layer in layers]
    factors = [side_by_side(each) for each in products]
    if not target._is_exact(layers[0].attention):
        weights = [roots(layer) for layer in layers]
        stacked = map(jnp.stack, zip(*map(weighted, products, weights), strict=True))
        fit, _ = fit_layers(Products(*stacked), target.shared_dim, target.solver, sweeps)
        for i, weight in enumerate(weights):
            left, mixing, right = (array[i] for array in fit)
            factors[i] = CP(left, mixing, right)
            if weight is not None:
                factors[i] = CP(weight[0].inverse @ left, mixing, weight[1].inverse @ right)
    return [_with_factors(target, layer, each) for layer, each in zip(layers, factors, strict=True)]


def _with_factors(target: ToCollaborative, layer: ConversionInput, factors: CP) -> Params:
    """Return the arrays of a layer with these factors in the place of its queries and keys."""
    source, params = layer.attention, layer.params
    new: Params = {"query": factors.left, "key": factors.right, "mixing": factors.mixing}
    new |= {name: params[name] for name in ("value", "output", "value_bias") if name in params}
    moments = None if target._is_exact(source) else layer.moments
    if source.projection_bias or moments is not None:
        # u_h = W_K^h b_Q^h + (T_h - T'_h)^T mean(x), the second term if calibrated
        products, bias = scaled_query_key(layer), layer.bias("query") * carried_scale(source)
        new["content_bias"] = jnp.einsum("mhd,hd->mh", products.right, bias, precision="highest")
        if moments is not None:
            mean = jnp.asarray(moments.query_mean, jnp.float32)
            new["content_bias"] += _logits_of(products, mean) - _logits_of(factors, mean)
    return new


def scaled_query_key(layer: ConversionInput) -> Products:
    """Return W_Q and W_K of a layer, scaled so that logits still have to be divided by sqrt(head_dim)."""
    return Products(layer.params["query"] * carried_scale(layer.attention), layer.params["key"])


def carried_scale(attention: Kind) -> float:
    """Return the layer's logit scale over 1 / sqrt(head_dim); 1 unless the layer has another scale (T5)."""
    return attention.logit_scale * attention.head_dim**0.5


def roots(layer: ConversionInput) -> tuple[Root, Root] | None:
    """Return the roots of the covariances that weight the inputs of queries and keys; None without calibration."""
    if layer.moments is None:
        return None
    # The mean query's logits go exactly into the content bias; the mean key of a sequence adds the same to a whole row.
    return covariance_root(layer.moments.query_covariance), covariance_root(layer.moments.key_within)


def weighted(products: Products, weights: tuple[Root, Root] | None) -> Products:
    """Return C_Q^(1/2) A_h and C_K^(1/2) B_h: the error of this tensor is the error of centred logits."""
    if weights is None:
        return products
    left, right = (
        jnp.einsum("de,ehi->dhi", weight.root, factor, precision="highest")
        for weight, factor in zip(weights, products, strict=True)
    )
    return Products(left, right)


def _logits_of(tensor: Products | CP, query: jax.Array) -> jax.Array:
    """Return T_h^T x of every head, `[columns, heads]`."""
    left, right = tensor.products() if isinstance(tensor, CP) else tensor
    inner = jnp.einsum("dhi,d->hi", left, query, precision="highest")
    return jnp.einsum("mhi,hi->mh", right, inner, precision="highest")


class CP(NamedTuple):
    """T_h = P diag(m_h) S^T: a sum of `rank` outer products (Cordonnier et al. 2020, section 3.3)."""

    left: jax.Array  # P [..., rows, rank], the shared query projection
    mixing: jax.Array  # M [..., heads, rank]
    right: jax.Array  # S [..., columns, rank], the shared key projection

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


def side_by_side(products: Products) -> CP:
    """Return the concatenated dimensions of all heads, mixed by blocks of ones (section 3.1)."""
    heads, dim = products.left.shape[1:]
    left, right = (factor.reshape(-1, heads * dim) for factor in products)
    owner = jnp.arange(heads * dim)[None, :] // dim == jnp.arange(heads)[:, None]
    return CP(left, owner.astype(left.dtype), right)


def concatenation(products: Products, rank: int) -> CP:
    """Return the heads' dimensions side by side, the `rank` of the largest singular values."""
    left, values, right = head_svd(products)
    order = jnp.argsort(-values.reshape(-1), stable=True)[:rank]
    scaled = (jnp.swapaxes(factor, 0, 1) * jnp.sqrt(values)[None] for factor in (left, right))
    return CP(*(factor[:, order] for factor in side_by_side(Products(*scaled))))


def sweep(products: Products, factors: CP, ridge: jax.Array, proximal: jax.Array) -> tuple[CP, jax.Array, jax.Array]:
    """Run one round of regularised alternating least squares: P, then S, then M, each the best for the other two.

    Returns the factors, ||T - T'||^2 - ||T||^2 up to rounding, and the sum of the components' squared norms. Both
    dampings are relative to the diagonal of the equations: `ridge` weighs the components' squared norms, without which
    they can grow without bound while they cancel each other; `proximal` weighs the distance to the old factor, which
    keeps the equations solvable and moves no fixed point.
    """
    # minimise  sum_h ||A_h B_h^T - P diag(m_h) S^T||^2 + ridge * sum_r ||p_r||^2 ||m_r||^2 ||s_r||^2
    # Without the ridge P solves P (M^T M * S^T S) = sum_h A_h (B_h^T S diag(m_h)), * by element; likewise S and M.
    left, mixing, right = factors
    a, b = products

    def improve(factor: jax.Array, target: jax.Array, normal: jax.Array) -> jax.Array:
        """Return the X with X normal = target, as a correction of the old one, in which rounding cannot accumulate."""
        diagonal = jnp.maximum(jnp.diagonal(normal), 1e-30)
        scale = jax.lax.rsqrt(diagonal)
        identity = jnp.eye(normal.shape[0], dtype=normal.dtype)
        scaled = normal * scale[:, None] * scale[None, :] + (ridge + proximal) * identity
        lower = jnp.linalg.cholesky(scaled, symmetrize_input=False)
        whitener = jax.lax.linalg.triangular_solve(lower, identity, left_side=True, lower=True)
        residual = target - factor @ normal - ridge * factor * diagonal[None, :]
        return factor + (residual * scale[None, :]) @ whitener.T @ whitener * scale[None, :]

    def project(factors: jax.Array, basis: jax.Array) -> jax.Array:
        """Return F_h^T X of every head: `[rows, heads, dim]` and `[rows, rank]` to `[heads, dim, rank]`."""
        flat = factors.reshape(factors.shape[0], -1).T @ basis
        return flat.reshape(*factors.shape[1:], basis.shape[-1])

    def join(factors: jax.Array, projected: jax.Array) -> jax.Array:
        """Return sum_h F_h X_h diag(m_h): `[rows, heads, dim]` by `[heads, dim, rank]` to `[rows, rank]`."""
        mixed = projected * mixing[:, None]
        return factors.reshape(factors.shape[0], -1) @ mixed.reshape(-1, mixed.shape[-1])

    mixing_gram = gram(mixing)
    left = improve(left, join(a, project(b, right)), mixing_gram * gram(right))
    left_gram, read = gram(left), project(a, left)
    right = improve(right, join(b, read), mixing_gram * left_gram)
    right_gram = gram(right)
    inner = (read * project(b, right)).sum(axis=1)
    mixing = improve(mixing, inner, left_gram * right_gram)
    fitted = left_gram * right_gram * gram(mixing)
    squared_error = fitted.sum() - 2.0 * (inner * mixing).sum()
    return CP(left, mixing, right).balanced(), squared_error, jnp.trace(fitted)


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
fit is exact; see `sweep`."""
_PROXIMAL = 1e-6
"""Smallest proximal weight. It grows tenfold while equations are singular."""
_ROUNDING = 1e-5
"""Largest rise of an error, relative to ||T||^2, that rounding alone can cause."""


def solve(products: Products, start: CP, solver: Solver, sweeps: int | jax.Array) -> tuple[CP, jax.Array]:
    """Improve the start of one tensor until the tolerance or the limit of sweeps is met; see `fit_layers`."""
    norm = jnp.maximum(squared_norm(products), jnp.finfo(jnp.float32).tiny)

    def step(state: _State) -> _State:
        ridge = _RIDGE * jnp.clip(state.value, 0.0, 1.0)
        factors, squared_error, squared_size = sweep(products, state.point, ridge, state.proximal)
        value, size = 1.0 + squared_error / norm, squared_size / norm
        accepted = value + ridge * size <= state.value + ridge * state.size + _ROUNDING
        # Momentum restarts where the step from the extrapolated point opposes the step from the best one.
        steps = factors, state.point, state.best
        inner = jax.tree.map(lambda new, point, best: ((new - point) * (new - best)).sum(), *steps)
        settled = accepted & ~(inner.left + inner.mixing + inner.right < 0.0)
        momentum = jnp.where(settled, (1.0 + jnp.sqrt(1.0 + 4.0 * state.momentum**2)) / 2.0, 1.0)
        beta = jnp.where(settled, (state.momentum - 1.0) / momentum, 0.0)
        best = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), factors, state.best)
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
        return (count < sweeps) & ~stalled

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
    return state.best, state.errors


@functools.partial(jax.jit, static_argnums=(1, 2))
def fit_layers(
    products: Products, rank: int, solver: Solver, sweeps: int | jax.Array | None = None
) -> tuple[CP, jax.Array]:
    """Approximate every layer's T_h = A_h B_h^T by the nearest P diag(m_h) S^T of this rank, in float32.

    `sweeps` are no more than the solver's, None as many.
    The errors `[layers, sweeps]` are ||T - T'|| / ||T|| after each sweep, the last one repeated; below 1e-3 rounding.
    """

    def one_layer(layer: Products) -> tuple[CP, jax.Array]:
        # A tensor of norm one makes damping and tolerance mean the same for every layer.
        norm = jnp.sqrt(jnp.maximum(squared_norm(layer), jnp.finfo(layer.left.dtype).tiny))
        inner = Products(layer.left / jnp.sqrt(norm), layer.right / jnp.sqrt(norm))
        factors, errors = solve(inner, concatenation(inner, rank), solver, solver.sweeps if sweeps is None else sweeps)
        return factors._replace(mixing=factors.mixing * norm), errors

    layers = products.left.shape[0]
    with jax.default_matmul_precision("highest"):
        # One layer keeps a CPU busy and holds least memory; accelerators want all at once.
        return jax.lax.map(one_layer, products, batch_size=None if jax.default_backend() == "cpu" else layers)
