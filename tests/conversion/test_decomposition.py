"""CP decompositions: exact where an exact one exists, monotone, deterministic."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from headjax.conversion.decomposition import Damping, Solver, concatenation, decompose, sweep
from headjax.conversion.products import Products, relative_distance, squared_norm
from headjax.core.errors import ConfigError
from tests import tiny
from tests.closeness import assert_close, tolerance
from tests.conversion.cases import DIM, HEADS, LAYERS, ROWS, layer_of, random_products, tensor


def test_concatenated_heads_are_exact_at_full_rank(products: Products) -> None:
    one = layer_of(products)
    start = concatenation(one, HEADS * DIM)
    assert relative_distance(one, start.products()) < tolerance(ROWS)
    assert set(np.unique(start.mixing)) == {0.0, 1.0}
    np.testing.assert_array_equal(start.mixing.sum(axis=1), np.full(HEADS, DIM))


def test_each_factor_of_a_sweep_is_the_least_squares_solution(products: Products) -> None:
    one = layer_of(products)
    start = concatenation(one, 5)
    swept = sweep(one, start, Damping(jnp.zeros(()), jnp.asarray(1e-7)))
    left, mixing, right = (np.asarray(factor, np.float64) for factor in swept.factors)
    full = tensor(one)
    components = np.einsum("rk,ck->krc", left, right).reshape(5, -1)
    best = np.linalg.lstsq(components.T, full.reshape(HEADS, -1).T, rcond=None)[0].T
    np.testing.assert_allclose(mixing, best, rtol=1e-3, atol=1e-4)
    approximation = np.einsum("rk,hk,ck->hrc", left, mixing, right)
    assert_close(swept.squared_error + squared_norm(one), np.square(full - approximation).sum(), sums=tiny.SUMS)
    sizes = np.prod([np.square(factor).sum(axis=0) for factor in (left, mixing, right)], axis=0)
    assert_close(swept.squared_size, sizes.sum(), sums=tiny.SUMS)


def test_the_error_falls_with_the_rank_and_is_the_reported_one(products: Products) -> None:
    errors = []
    for rank in (2, 5, 9):
        fit = decompose(products, rank)
        exact = [relative_distance(layer_of(products, i), layer_of(fit.factors, i).products()) for i in range(LAYERS)]
        assert_close(fit.errors[:, -1], exact, sums=tiny.SUMS)
        errors.append(exact)
    assert np.all(np.diff(np.asarray(errors), axis=0) < 0)


def test_fewer_dimensions_than_rows_change_nothing_but_the_work() -> None:
    narrow = random_products(4, heads=2)
    padded = Products(*(jnp.pad(factor, ((0, 0), (0, 0), (0, 0), (0, 4))) for factor in narrow))
    solver = Solver(sweeps=30, tolerance=0.0)
    np.testing.assert_allclose(decompose(narrow, 3, solver).errors, decompose(padded, 3, solver).errors, atol=1e-3)


def test_the_error_falls_from_sweep_to_sweep_and_the_same_bits_come_again(products: Products) -> None:
    one, same = (decompose(products, 5, Solver(sweeps=40, tolerance=0.0)) for _ in range(2))
    assert np.all(np.diff(one.errors, axis=1) <= 1e-2)
    assert np.all(one.errors[:, -1] < one.errors[:, 0])
    for a, b in zip(one.factors, same.factors, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_rank_that_cannot_be_is_refused(products: Products) -> None:
    for rank in (0, HEADS * DIM + 1):
        with pytest.raises(ConfigError, match=r"^rank:"):
            decompose(products, rank)
