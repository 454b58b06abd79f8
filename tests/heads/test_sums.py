from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from headjax.core.errors import DataError
from headjax.heads.sums import one_behind, sum_over


def test_an_item_comes_after_the_next_one_was_asked_for():
    asked = []

    def items():
        for number in range(3):
            asked.append(number)
            yield number

    walk = one_behind(items())
    assert next(walk) == 0
    assert asked == [0, 1]
    assert list(walk) == [1, 2]


def test_sums_are_taken_in_float64_on_the_host():
    parts = [{"a": jnp.float32(2**24)}, {"a": jnp.float32(1.0)}]  # float32 would lose the second one
    seen = []
    total = sum_over(parts, lambda number, tree: seen.append((number, float(tree["a"]))))
    assert total["a"].dtype == np.float64
    assert float(total["a"]) == 2**24 + 1
    assert seen == [(0, 2.0**24), (1, 1.0)]


def test_no_batches_is_an_error():
    with pytest.raises(DataError, match="batches: there is no example"):
        sum_over([])
