"""Captured variance of queries and keys."""

import numpy as np
import pytest

from headjax.conversion.target import captured_variance, rank_for
from tests import tiny
from tests.closeness import assert_close


@pytest.fixture(scope="module")
def model():
    return tiny.model(tiny.decoder_config())


def attention_params(model, layer: int):
    return model.config.stacks()["decoder"].unstack(model.params["decoder"])[layer]["attention"]


def test_captured_variance_is_the_share_of_squared_singular_values(model) -> None:
    found = captured_variance(model)
    assert list(found) == [("decoder", 0), ("decoder", 1)]
    params = {name: np.asarray(attention_params(model, 1)[name], np.float64) for name in ("query", "key")}
    one = found["decoder", 1]
    query, key = (params[name].reshape(16, 16) for name in ("query", "key"))
    slices = np.einsum("dhi,mhi->hdm", params["query"], params["key"])
    for curve, matrix in ((one.query, query), (one.key, key), (one.product, slices.sum(axis=0))):
        squares = np.square(np.linalg.svd(matrix, compute_uv=False))
        assert_close(curve, np.cumsum(squares) / squares.sum(), sums=tiny.SUMS)
    squares = np.square(np.linalg.svd(slices, compute_uv=False))[:, :4]
    assert_close(one.product_by_head, np.cumsum(squares, 1) / squares.sum(1, keepdims=True), sums=tiny.SUMS)
    assert one.product.shape == (16,)


def test_rank_for_is_the_smallest_rank_that_captures_the_share() -> None:
    curve = np.array([0.5, 0.9, 0.95, 1.0])
    assert [int(rank_for(curve, share)) for share in (0.4, 0.5, 0.9, 0.91, 1.0)] == [1, 1, 2, 3, 4]
