"""The bound of `closeness` holds for sums in any order, and not for errors a few times larger."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.closeness import assert_close, assert_numbers_close, assert_trees_close, close_to, tolerance

EPS = float(np.finfo(np.float32).eps)


def terms(count: int, results: int = 1000) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((results, count)).astype(np.float32)


def one_after_another(values: np.ndarray, lanes: int) -> np.ndarray:
    """Sums as a processor with so many lanes takes them: a sum per lane, then the lanes' sum, in float32."""
    columns = [values[:, lane::lanes].cumsum(axis=1, dtype=np.float32)[:, -1] for lane in range(lanes)]
    return np.stack(columns, axis=1).cumsum(axis=1, dtype=np.float32)[:, -1]


@pytest.mark.parametrize("count", [16, 256, 4096])
def test_orders_of_a_sum_are_close_and_the_bound_is_no_wider_than_it_must(count):
    products = terms(count) * terms(count + 1)[:, :count]
    expected = one_after_another(products, 1)
    largest = np.abs(expected).max()
    for lanes in (2, 4, 8):
        actual = one_after_another(products, lanes)
        assert_close(actual, expected, sums=count)
        assert np.abs(actual - expected).max() > tolerance(count) * largest / 100


@pytest.mark.parametrize("sums", [1, 64, 1024])
@pytest.mark.parametrize("magnitude", [1e-6, 1.0, 1e6])
def test_an_error_of_twice_the_bound_fails(sums, magnitude):
    expected = magnitude * terms(8)
    bound = 4 * EPS * np.sqrt(sums) * np.abs(expected).max()
    actual = expected.copy()
    actual[3, 5] += 0.5 * bound
    assert_close(actual, expected, sums=sums)
    actual[3, 5] += 1.5 * bound
    with pytest.raises(AssertionError, match=f"weights\n{sums} terms"):
        assert_close(actual, expected, sums=sums, message="weights")


BFLOAT16 = jnp.asarray(np.ones(3) + 0.02, jnp.bfloat16)
TREE = {"large": np.full(2, 1e3), "small": np.full(2, 1e-3)}
SCORES = {"a": 100.0, "b": 1e-6}


@pytest.mark.parametrize(
    ("assertion", "actual", "expected", "given"),
    [
        (assert_close, 1e-5, 0.0, {"scale": 100.0}),
        (assert_close, np.ones(3) + 3 * EPS, np.ones(3), {}),
        (assert_close, BFLOAT16, np.ones(3), {}),
        (assert_close, [np.inf, 1.0], [np.inf, 1.0], {}),
        (assert_trees_close, TREE | {"small": TREE["small"] + 3e-7}, TREE, {"floor": 1e-3}),
        (assert_numbers_close, {"b": 2e-5, "a": 100.0}, SCORES, {}),
    ],
)
def test_what_is_close(assertion, actual, expected, given):
    """Relative to the largest value, or to the scale; in the coarser precision of both, float32 at least."""
    assertion(actual, expected, sums=1, **given)


@pytest.mark.parametrize(
    ("assertion", "actual", "expected", "given"),
    [
        (assert_close, 1e-5, 0.0, {}),
        (assert_close, np.ones(3) + 3 * EPS, np.ones(3), {"dtype": np.float64}),
        (assert_close, BFLOAT16 + 0.08, np.ones(3), {}),
        (assert_close, [np.nan], [np.nan], {}),
        (assert_close, [np.inf], [1.0], {}),
        (assert_close, np.ones((2, 3)), np.ones((1, 3)), {}),
        (assert_trees_close, TREE | {"small": TREE["small"] + 1e-6}, TREE, {}),
        (assert_trees_close, TREE | {"small": TREE["small"] + 1e-6}, TREE, {"floor": 1e-3}),
        (assert_trees_close, {"large": TREE["large"]}, TREE, {}),
        (assert_numbers_close, {"a": 100.0, "b": 2e-4}, SCORES, {}),
    ],
)
def test_what_is_not_close(assertion, actual, expected, given):
    with pytest.raises(AssertionError):
        assertion(actual, expected, sums=1, **given)


def test_numbers_and_dictionaries_are_compared_relative_to_themselves():
    assert close_to(1000.0, sums=1) == 1000.0 * (1 + 3 * EPS)
    assert close_to(1000.0, sums=1) != 1000.0 * (1 + 12 * EPS)
    assert close_to(1000.0, sums=16) == 1000.0 * (1 + 12 * EPS)
    assert close_to({"loss": 1.0, "f1": 2e-9}, sums=16) != {"loss": 1.0, "f1": 1e-9}
    assert close_to(1.0, sums=16, dtype=np.float64) != 1.0 + 1e-12
