import math

import jax.numpy as jnp
import numpy as np
import pytest

from headjax.core.errors import KernelError
from headjax.heads import statistics
from headjax.heads.statistics import Pattern, sum_over
from headjax.nn import Mask
from tests.closeness import assert_close

SUMS = 4
"""Terms of the longest way: a sum over 4 keys."""


def probe(weights, **fields):
    """A pattern of hand-made probabilities, `[heads, query, key]` for a batch of one."""
    weights = None if weights is None else jnp.asarray(weights, jnp.float32)[None]
    return Pattern(**{"probabilities": weights, "mask": None, "queries": None} | fields)


WEIGHTS = [
    [[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]],
    [[1.0, 0.0, 0.0, 0.0], [0.7, 0.1, 0.1, 0.1], [0.0, 0.0, 1.0, 0.0]],
]
MIXED = -(0.7 * math.log(0.7) + 3 * 0.1 * math.log(0.1))


def test_entropy_of_hand_made_probabilities():
    expected = [[math.log(4), 0.0], [math.log(2), MIXED], [0.0, 0.0]]
    assert_close(statistics.entropy(probe(WEIGHTS))[0], expected, sums=SUMS)
    assert_close(statistics.normalized_entropy(probe(WEIGHTS))[0], expected / np.log(4), sums=SUMS)


def test_normalized_entropy_counts_the_keys_a_query_may_see():
    causal = [[[1.0, 0, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]], [[1.0, 0, 0], [1.0, 0, 0], [0.5, 0.5, 0]]]
    expected = [[0.0, 0.0], [1.0, 0.0], [1.0, math.log(2) / math.log(3)]]
    got = statistics.normalized_entropy(probe(causal, mask=Mask(causal=True)))
    assert_close(got[0], expected, sums=SUMS)
    keys = jnp.array([[True, True, False]])
    padded = [[[0.5, 0.5, 0.0]] * 3, [[1.0, 0.0, 0.0]] * 3]
    assert_close(statistics.normalized_entropy(probe(padded, mask=Mask(keys=keys)))[0], [[1.0, 0.0]] * 3, sums=SUMS)


def test_distance_of_hand_made_probabilities():
    expected = [[1.5, 0.0], [0.5, 0.7 + 0.1 + 0.2], [1.0, 0.0]]
    assert_close(statistics.distance(probe(WEIGHTS))[0], expected, sums=SUMS)


def test_an_implementation_without_probabilities_is_an_error():
    with pytest.raises(KernelError, match="holds no probabilities"):
        statistics.entropy(probe(None))


def test_sums_are_taken_in_float64_on_the_host():
    parts = [{"a": jnp.float32(2**24)}, {"a": jnp.float32(1.0)}]  # float32 would lose the second one
    seen = []
    total = sum_over(parts, lambda number, tree: seen.append((number, float(tree["a"]))))
    assert total["a"].dtype == np.float64
    assert float(total["a"]) == 2**24 + 1
    assert seen == [(0, 2.0**24), (1, 1.0)]
