"""CP decompositions: exact where an exact one exists, monotone, deterministic."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headjax.conversion.decomposition import CP, STARTS, Damping, Search, Solver, concatenation, decompose, sweep
from headjax.conversion.products import Products, relative_distance, squared_norm
from headjax.core.errors import ConfigError
from tests import tiny
from tests.closeness import assert_close, tolerance
from tests.conversion.cases import COLUMNS, DIM, HEADS, LAYERS, ROWS, layer_of, random_products, tensor


def test_concatenated_heads_are_exact_at_full_rank(products: Products) -> None:
    one = layer_of(products)
    start = concatenation(one, HEADS * DIM, jax.random.key(0))
    assert relative_distance(one, start.products()) < tolerance(ROWS)
    assert set(np.unique(start.mixing)) == {0.0, 1.0}
    np.testing.assert_array_equal(start.mixing.sum(axis=1), np.full(HEADS, DIM))


def test_each_factor_of_a_sweep_is_the_least_squares_solution(products: Products) -> None:
    one = layer_of(products)
    start = STARTS["random"](one, 5, jax.random.key(0))
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


@pytest.mark.parametrize("start", sorted(STARTS))
def test_plain_alternating_least_squares_never_raises_the_error(products: Products, start: str) -> None:
    solver = Solver(sweeps=40, tolerance=0.0, acceleration=False, ridge=0.0)
    errors = np.asarray(decompose(products, 5, search=Search(starts=(start,), solver=solver)).errors)
    assert np.all(np.diff(errors, axis=1) <= 1e-5)
    assert np.all(errors[:, -1] < errors[:, 0])


def test_acceleration_needs_fewer_sweeps(products: Products) -> None:
    def after(acceleration: bool) -> np.ndarray:
        solver = Solver(sweeps=60, tolerance=0.0, acceleration=acceleration)
        return np.asarray(decompose(products, 6, search=Search(solver=solver)).errors)

    plain, accelerated = after(False), after(True)
    assert np.all(accelerated[:, 30] < plain[:, 59] + 1e-3)
    assert np.all(accelerated[:, -1] < plain[:, -1] + 1e-6)


def test_a_tensor_of_known_rank_is_recovered() -> None:
    generator = np.random.default_rng(3)
    rank = 4
    truth = CP(*(jnp.asarray(generator.standard_normal((1, n, rank)), jnp.float32) for n in (ROWS, 6, COLUMNS)))
    known = truth.products()
    search = Search(starts=("random", "random", "svd"), solver=Solver(sweeps=500, tolerance=1e-6))
    fit = decompose(known, rank, search=search)
    assert relative_distance(layer_of(known), layer_of(fit.factors).products()) < 2e-3


def test_the_error_falls_with_the_rank_and_is_the_reported_one(products: Products) -> None:
    errors = []
    for rank in (2, 5, 9):
        fit = decompose(products, rank)
        exact = [relative_distance(layer_of(products, i), layer_of(fit.factors, i).products()) for i in range(LAYERS)]
        assert_close(fit.errors[:, -1], exact, sums=tiny.SUMS)
        errors.append(exact)
    assert np.all(np.diff(np.asarray(errors), axis=0) < 0)


def test_the_same_seed_gives_the_same_bits_and_the_best_start_wins(products: Products) -> None:
    search = Search(starts=("random", "random"), solver=Solver(sweeps=20, tolerance=0.0))
    one, same = decompose(products, 5, search=search, seed=1), decompose(products, 5, search=search, seed=1)
    other = decompose(products, 5, search=search, seed=2)
    for a, b in zip(one.factors, same.factors, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(one.factors.left, other.factors.left)
    single = decompose(products, 5, search=Search(starts=("random",), solver=search.solver), seed=1)
    assert np.all(one.errors[:, -1] <= single.errors[:, -1])


def test_fewer_dimensions_than_rows_change_nothing_but_the_work() -> None:
    narrow = random_products(4, heads=2)
    padded = Products(*(jnp.pad(factor, ((0, 0), (0, 0), (0, 0), (0, 4))) for factor in narrow))
    search = Search(solver=Solver(sweeps=30, tolerance=0.0))
    np.testing.assert_allclose(
        decompose(narrow, 3, search=search).errors, decompose(padded, 3, search=search).errors, atol=1e-3
    )


def test_ranks_and_starts_that_cannot_be_are_refused(products: Products) -> None:
    for rank in (0, HEADS * DIM + 1):
        with pytest.raises(ConfigError, match=r"^rank:"):
            decompose(products, rank)
    with pytest.raises(ConfigError, match=r"^starts:"):
        Search(starts=("concatenate",))


@pytest.mark.whole
@pytest.mark.parametrize("start", ["concatenation", "svd"])
def test_starts_of_a_real_size_finish(start: str) -> None:
    """Two batched factorisations of BERT's size at the same time have been seen to wait for each other for ever."""
    code = (
        "import jax, jax.numpy as jnp; from headjax.conversion.products import Products;"
        "from headjax.conversion.decomposition import STARTS; key = jax.random.key(0);"
        "factors = jax.random.normal(key, (2, 768, 12, 64));"
        f"start = jax.jit(STARTS[{start!r}], static_argnums=1);"
        "jax.block_until_ready(start(Products(*factors), 384, key))"
    )
    # Threads of BLAS that fight for busy cores would make this slow, which is another matter.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    finished = subprocess.run([sys.executable, "-c", code], timeout=240, env=environment, check=False)
    assert finished.returncode == 0
