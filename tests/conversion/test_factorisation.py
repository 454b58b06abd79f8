"""The decompositions: exact where an exact one exists, monotone, deterministic."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headjax.conversion.cp import CP, STARTS, Damping, concatenation, sweep
from headjax.conversion.decomposition import Search, Solver, decompose
from headjax.conversion.latent import low_rank
from headjax.conversion.products import Products, relative_distance, squared_distance, squared_norm
from headjax.conversion.sharing import generalised, orthogonal, pairwise
from headjax.conversion.tucker import tucker
from headjax.core.errors import ConfigError
from tests import tiny
from tests.closeness import assert_close, tolerance

LAYERS, ROWS, COLUMNS, HEADS, DIM = 2, 14, 13, 4, 3


def random_products(seed: int = 0, **sizes: int) -> Products:
    sizes = {"layers": LAYERS, "rows": ROWS, "columns": COLUMNS, "heads": HEADS, "dim": DIM} | sizes
    generator = np.random.default_rng(seed)
    shape = (sizes["heads"], sizes["dim"])
    left = generator.standard_normal((sizes["layers"], sizes["rows"], *shape))
    right = generator.standard_normal((sizes["layers"], sizes["columns"], *shape))
    return Products(jnp.asarray(left, jnp.float32), jnp.asarray(right, jnp.float32))


def layer_of(tree, i: int = 0):
    return jax.tree.map(lambda array: array[i], tree)


def tensor(products: Products) -> np.ndarray:
    return np.einsum("rhd,chd->hrc", np.asarray(products.left, np.float64), np.asarray(products.right, np.float64))


@pytest.fixture(scope="module")
def products() -> Products:
    return random_products()


def test_norms_are_those_of_the_tensor_that_is_never_formed(products: Products) -> None:
    one, other = layer_of(products), layer_of(random_products(1))
    assert_close(squared_norm(one), np.square(tensor(one)).sum(), sums=tiny.SUMS)
    assert_close(squared_distance(one, other), np.square(tensor(one) - tensor(other)).sum(), sums=tiny.SUMS)
    expected = np.linalg.norm(tensor(one) - tensor(other)) / np.linalg.norm(tensor(one))
    assert_close(relative_distance(one, other), expected, sums=tiny.SUMS)


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


@pytest.mark.parametrize("rank", [0, HEADS * DIM + 1])
def test_a_rank_that_the_products_lack_is_refused(products: Products, rank: int) -> None:
    with pytest.raises(ConfigError, match="rank: must be from 1 to heads"):
        decompose(products, rank)


def test_an_unknown_start_is_refused() -> None:
    with pytest.raises(ConfigError, match="starts: unknown start 'concatenate'"):
        Search(starts=("concatenate",))


def test_tucker_is_exact_at_full_rank_and_beats_cp_of_the_same_rank(products: Products) -> None:
    one = layer_of(products)
    assert relative_distance(one, tucker(one, HEADS * DIM, HEADS * DIM).products()) < tolerance(tiny.SUMS)
    errors = [float(relative_distance(one, tucker(one, rank, rank).products())) for rank in (2, 5, 9)]
    assert errors == sorted(errors, reverse=True)
    assert errors[1] <= float(decompose(products, 5).errors[0, -1])
    started = relative_distance(one, tucker(one, 5, 5, 0).products())
    assert errors[1] <= float(started) + 1e-6


def test_low_rank_is_the_best_of_its_rank() -> None:
    matrix = np.random.default_rng(0).standard_normal((9, 20)).astype(np.float32)
    left, right = low_rank(jnp.asarray(matrix), 4)
    values = np.linalg.svd(matrix, compute_uv=False)
    assert_close(np.linalg.norm(matrix - left @ right), np.sqrt(np.square(values[4:]).sum()), sums=tiny.SUMS)
    left, right = low_rank(jnp.asarray(matrix), 12)
    assert left.shape == (9, 12)
    assert_close(left @ right, matrix, sums=tiny.SUMS)


@given(st.integers(0, 10_000))
def test_procrustes_undoes_a_rotation(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rotation = np.linalg.qr(generator.standard_normal((4, 4)))[0].astype(np.float32)
    matrix = jnp.asarray(generator.standard_normal((9, 4)), jnp.float32)
    assert_close(orthogonal(matrix, matrix @ rotation), rotation, sums=tiny.SUMS)


def test_generalised_procrustes_aligns_what_differs_by_rotations() -> None:
    generator = np.random.default_rng(0)
    matrix = generator.standard_normal((9, 4))
    turned = [matrix @ np.linalg.qr(generator.standard_normal((4, 4)))[0] for _ in range(3)]
    matrices = jnp.asarray(np.stack(turned), jnp.float32)
    rotations = generalised(matrices)
    aligned = np.einsum("nrd,nde->nre", matrices, rotations)
    assert_close(aligned, np.broadcast_to(aligned[:1], aligned.shape), sums=tiny.SUMS)
    identities = np.einsum("nde,ndf->nef", rotations, rotations)
    assert_close(identities, np.broadcast_to(np.eye(4), identities.shape), sums=tiny.SUMS)


def test_pairwise_rotations_turn_pairs_and_mix_the_rest() -> None:
    generator = np.random.default_rng(0)
    matrix = generator.standard_normal((9, 6)).astype(np.float32)
    rotation = np.zeros((6, 6))
    for angle, (i, j) in zip((0.3, -1.2), ((0, 2), (1, 3)), strict=True):
        rotation[[i, j], [i, j]] = np.cos(angle)
        rotation[i, j], rotation[j, i] = np.sin(angle), -np.sin(angle)
    rotation[4:, 4:] = np.linalg.qr(generator.standard_normal((2, 2)))[0]
    found = pairwise(((0, 2), (1, 3)))(jnp.asarray(matrix), jnp.asarray(matrix @ rotation, jnp.float32))
    assert_close(found, rotation, sums=tiny.SUMS)


@pytest.mark.parametrize("start", ["concatenation", "svd"])
def test_starts_of_a_real_size_finish(start: str) -> None:
    """Two batched factorisations of BERT's size at the same time have been seen to wait for each other for ever."""
    code = (
        "import jax, jax.numpy as jnp; from headjax.conversion.products import Products;"
        "from headjax.conversion.cp import STARTS; key = jax.random.key(0);"
        "factors = jax.random.normal(key, (2, 768, 12, 64));"
        f"start = jax.jit(STARTS[{start!r}], static_argnums=1);"
        "jax.block_until_ready(start(Products(*factors), 384, key))"
    )
    # Threads of BLAS that fight for busy cores would make this slow, which is another matter.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    finished = subprocess.run([sys.executable, "-c", code], timeout=240, env=environment, check=False)
    assert finished.returncode == 0
