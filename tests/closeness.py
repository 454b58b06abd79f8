"""How far apart two floating-point results of the same mathematics may lie on any processor.

A processor's vector width, its fused multiply-add and the number of threads decide the order in which a sum is taken,
so results differ in their last bits. The bound follows from the number of terms and from the magnitudes:

    |actual - expected| <= HEADROOM * eps * sqrt(sums) * max|expected|

A rounding moves a value by eps / sqrt(12) in the root mean square, and roundings walk at random; four of them a term
make 0.58 eps sqrt(sums). The largest of 100,000 entries lies 4.5 deviations out, which makes 2.6; functions such as
`exp` err by more than half a unit in the last place, which rounds it up to 4. A wrong formula changes results by more.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from headjax.core.tensors import flatten

HEADROOM = 4.0


def tolerance(sums: int, dtype: Any = np.float32) -> float:
    """Return the largest difference of two results, as a share of the largest value.

    `sums` are the terms added up on the longest way from the inputs to a result: the lengths of all contracted or
    averaged axes that follow one another, added. 1 for a result of a few operations entry by entry.
    """
    return HEADROOM * float(jnp.finfo(dtype).eps) * math.sqrt(sums)


def coarsest(*arrays: Any) -> Any:
    """Return the float type with the largest epsilon among the arrays' and float32, in which JAX computes."""
    types = [np.asarray(array).dtype for array in arrays]
    floats = [kind for kind in types if jnp.issubdtype(kind, jnp.floating)]
    return max([*floats, jnp.dtype(jnp.float32)], key=lambda kind: jnp.finfo(kind).eps)


def assert_close(
    actual: Any, expected: Any, *, sums: int, scale: float | None = None, dtype: Any = None, message: str = ""
) -> None:
    """Fail unless an array is another up to the rounding errors of the sums that made it.

    `scale` is the largest value met on the way, where the results are smaller (terms that cancel, an expected zero) or
    where a result depends on it (the logits of a softmax); by default the largest of `expected`. `dtype` is by default
    the coarser of the arrays', at least float32's; `message` says what is compared.
    """
    share = tolerance(sums, dtype or coarsest(actual, expected))
    actual, expected = (np.asarray(array).astype(np.float64) for array in (actual, expected))
    largest = float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)) if scale is None else scale
    explained = f"{message}\n{sums} terms up to {largest:.3g}: a share of {share:.3g} of the largest".strip()
    np.testing.assert_allclose(actual, expected, rtol=0.0, atol=share * largest, equal_nan=False, err_msg=explained)


def assert_trees_close(
    actual: Mapping[str, Any], expected: Mapping[str, Any], *, sums: int, floor: float = 0.0, dtype: Any = None
) -> None:
    """Fail unless two flat trees have the same paths and, each relative to its own largest value, the same arrays.

    `floor` is the share of the tree's largest value that counts as the scale of arrays with smaller values: the
    gradient of a key's bias is zero, and what is left of it are the rounding errors of larger terms that cancel.
    """
    assert actual.keys() == expected.keys()
    sizes = {path: float(np.abs(np.asarray(array, np.float64)).max(initial=0.0)) for path, array in expected.items()}
    smallest = floor * max(sizes.values(), default=0.0)
    for path, array in expected.items():
        assert_close(actual[path], array, sums=sums, scale=max(sizes[path], smallest), dtype=dtype, message=path)


def assert_trees_equal(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Fail unless two trees, nested or flat, have the same paths and, bit for bit, the same arrays."""
    actual, expected = flatten(actual), flatten(expected)
    assert actual.keys() == expected.keys()
    for path, array in expected.items():
        np.testing.assert_array_equal(actual[path], array, err_msg=path)


def assert_numbers_close(
    actual: Mapping[Any, float], expected: Mapping[Any, float], *, sums: int, scale: float | None = None, name: str = ""
) -> None:
    """Fail unless two dictionaries of one quantity, such as a score of each head, are equal up to rounding.

    The bound is relative to the largest number, or to `scale`: a small one is left where larger terms cancel.
    """
    assert actual.keys() == expected.keys()
    assert_close([actual[key] for key in expected], list(expected.values()), sums=sums, scale=scale, message=name)


def close_to(expected: Any, *, sums: int, dtype: Any = np.float32) -> Any:
    """Return what numbers, or a dictionary of them, equal up to rounding: `assert loss == close_to(other, sums=50)`.

    Each number is compared relative to itself. Losses and metrics of JAX are sums in float32, whatever type holds them;
    `dtype=np.float64` is for what NumPy or Python computes.
    """
    return pytest.approx(expected, rel=tolerance(sums, dtype), abs=0.0)
