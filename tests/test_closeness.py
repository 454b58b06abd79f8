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


BFLOAT16 = jnp.asarray(np.ones(3) + 0.02, jnp.bfloat16)
TREE = {"large": np.full(2, 1e3), "small": np.full(2, 1e-3)}
SCORES = {"a": 100.0, "b": 1e-6}


@pytest.mark.parametrize(
    ("assertion", "close", "far", "expected", "given"),
    [
        (assert_close, 1e-5, 1e-4, 0.0, {"scale": 100.0}),
        (assert_close, np.ones(3) + 3 * EPS, np.ones(3) + 8 * EPS, np.ones(3), {}),
        (assert_close, BFLOAT16, BFLOAT16 + 0.08, np.ones(3), {}),
        (assert_close, [np.inf, 1.0], [1.0, 1.0], [np.inf, 1.0], {}),
        (assert_close, [1.0], [np.nan], [1.0], {}),
        (assert_close, np.ones((2, 3)), np.ones((1, 3)), np.ones((2, 3)), {}),
        (assert_trees_close, TREE | {"small": TREE["small"] + 3e-7}, TREE | {"small": TREE["small"] + 1e-6}, TREE,
         {"floor": 1e-3}),
        (assert_trees_close, TREE, {"large": TREE["large"]}, TREE, {}),
        (assert_numbers_close, {"b": 2e-5, "a": 100.0}, {"a": 100.0, "b": 2e-4}, SCORES, {}),
    ],
)  # fmt: skip
def test_what_is_close_and_what_is_not(assertion, close, far, expected, given):
    """Relative to the largest value, or to the scale; in the coarser precision of both, float32 at least."""
    assertion(close, expected, sums=1, **given)
    with pytest.raises(AssertionError):
        assertion(far, expected, sums=1, **given)


def test_numbers_and_dictionaries_are_compared_relative_to_themselves():
    assert close_to(1000.0, sums=1) == 1000.0 * (1 + 3 * EPS)
    assert close_to(1000.0, sums=1) != 1000.0 * (1 + 12 * EPS)
    assert close_to({"loss": 1.0, "f1": 2e-9}, sums=16) != {"loss": 1.0, "f1": 1e-9}
