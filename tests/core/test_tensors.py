"""What derives from declared tensors: stacking, counting, drawing, strict checks and taking heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import headjax
from headjax.core.tensors import (
    Constant,
    FanIn,
    SlicedXavier,
    TruncatedNormal,
    Xavier,
    Zeros,
    check,
    fans,
    initialize,
    stack_weight,
)
from headjax.nn.projections import FeedForward
from tests.closeness import assert_trees_equal

TENSORS = {
    "attention": {
        "query": headjax.nn.weight((6, 4, 3), ("embed", "heads", "head_dim")),
        "output": headjax.nn.weight((4, 3, 6), ("heads", "head_dim", "embed"), inputs=(0, 1)),
        "bias": headjax.nn.weight((6,), ("embed",), Zeros()),
    },
    "empty": {},
    "scale": headjax.nn.weight((), (), Constant(2.0), inputs=()),
}
DRAWN = initialize(TENSORS, jax.random.key(0), headjax.nn.Normal(1.0))


def test_each_tensor_takes_its_own_initialiser_and_randomness():
    """Also where one more tensor is declared."""
    np.testing.assert_array_equal(DRAWN["attention"]["bias"], np.zeros(6))
    assert float(DRAWN["scale"]) == 2.0
    query, output = DRAWN["attention"]["query"], DRAWN["attention"]["output"]
    assert abs(np.corrcoef(query.ravel(), output.ravel())[0, 1]) < 0.4
    other = initialize(TENSORS, jax.random.key(1), headjax.nn.Normal(1.0))["attention"]["query"]
    assert not np.allclose(other, query)
    more = initialize(
        {"before": headjax.nn.weight((2,), ("embed",)), **TENSORS}, jax.random.key(0), headjax.nn.Normal(1.0)
    )
    assert_trees_equal({path: array for path, array in more.items() if path != "before"}, DRAWN)


def replaced(path: str, array: object) -> dict[str, object]:
    """The drawn parameters with one array replaced, or removed by None."""
    params = {"attention": dict(DRAWN["attention"]), "empty": {}, "scale": DRAWN["scale"]}
    group, name = (params["attention"], path.split("/")[1]) if "/" in path else (params, path)
    if array is None:
        del group[name]
    else:
        group[name] = array
    return params


@pytest.mark.parametrize(
    "path, array, named",
    [
        *((path, None, path) for path in ("attention/bias", "scale")),
        *(("attention/bias", np.zeros(shape), "attention/bias") for shape in (7, (6, 1))),
        ("attention/extra", np.zeros(1), "attention/extra"),
        ("attention", np.zeros(1), "attention/query"),
    ],
)
def test_check_names_the_array_that_does_not_fit(path, array, named):
    check(TENSORS, DRAWN)
    with pytest.raises(headjax.ParameterError, match=f"^{named}: "):
        check(TENSORS, replaced(path, array))


QUERY = headjax.nn.weight((64, 8, 16), ("embed", "heads", "head_dim"))
OUTPUT = headjax.nn.weight((8, 16, 64), ("heads", "head_dim", "embed"), inputs=(0, 1))

CUT = 0.87962566  # standard deviation of a unit Gaussian cut at +-2

EXPECTED = {
    "normal": (headjax.nn.Normal(0.02), lambda tensor: 0.02),
    "truncated_normal": (TruncatedNormal(0.02), lambda tensor: 0.02 * CUT),
    "fan_in": (FanIn(1.5), lambda tensor: 1.5 / np.sqrt(fans(tensor, tensor.shape)[0])),
    "xavier": (Xavier(0.5), lambda tensor: 0.5 * np.sqrt(2.0 / sum(fans(tensor, tensor.shape)))),
}
"""Initialisers and the standard deviation they should have."""


def draw(initializer, tensor: nnx.Param, seed: int = 0, dtype=jnp.float32) -> np.ndarray:
    return np.asarray(initializer(jax.random.key(seed), tensor, dtype))


@pytest.mark.parametrize("name", EXPECTED)
def test_mean_and_standard_deviation(name):
    """Also of a stacked tensor: the layers axis belongs to no fan, and each layer is drawn by itself."""
    initializer, expected = EXPECTED[name]
    for tensor in (QUERY, OUTPUT, stack_weight(OUTPUT, 4)):
        drawn, deviation = draw(initializer, tensor), expected(tensor)
        assert (drawn.shape, drawn.dtype) == (tensor.shape, np.float32)
        assert abs(drawn.mean()) < 5 * deviation / np.sqrt(drawn.size)
        assert drawn.std() == pytest.approx(deviation, rel=5 / np.sqrt(2 * drawn.size))
    assert deviation == expected(OUTPUT)
    np.testing.assert_allclose(drawn.std(axis=(1, 2, 3)), draw(initializer, OUTPUT).std(), rtol=0.05)
    assert np.abs(np.corrcoef(drawn.reshape(4, -1)) - np.eye(4)).max() < 0.05


def test_bounds_constants_and_the_key():
    assert np.abs(draw(TruncatedNormal(0.02), QUERY)).max() <= 0.04
    limit = np.sqrt(6.0 / (64 + 128))
    assert 0.99 * limit < np.abs(draw(Xavier(), QUERY)).max() <= limit
    for initializer, value in ((Zeros(), 0.0), (headjax.nn.Ones, 1.0), (Constant(-0.5), -0.5)):
        np.testing.assert_array_equal(draw(initializer, QUERY, dtype=jnp.bfloat16), value)
    np.testing.assert_array_equal(draw(headjax.nn.Normal(), QUERY, 1), draw(headjax.nn.Normal(), QUERY, 1))
    assert not np.allclose(draw(headjax.nn.Normal(), QUERY, 1), draw(headjax.nn.Normal(), QUERY, 2))


def test_sliced_xavier_draws_the_large_layers_spread():
    """One of 4 heads of width 64: the large query is 64 x 64, the small one 64 x 16."""
    tensor, key = headjax.nn.weight((64, 1, 16), ("embed", "heads", "head_dim")), jax.random.key(3)
    small, sliced = Xavier(), SlicedXavier(slices=4)
    assert np.abs(small(key, tensor, np.float32)).max() == pytest.approx(np.sqrt(6 / 80), rel=0.01)
    assert np.abs(sliced(key, tensor, np.float32)).max() == pytest.approx(np.sqrt(6 / 128), rel=0.01)
    down = FeedForward(64, 32).down
    assert np.abs(sliced(key, down, np.float32)).max() == pytest.approx(np.sqrt(6 / 192), rel=0.01)
    table = headjax.nn.weight((50, 64), ("vocabulary", "embed"))
    np.testing.assert_array_equal(sliced(key, table, np.float32), small(key, table, np.float32))
