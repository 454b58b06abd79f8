"""Norms and distances of products that are never multiplied out."""

from __future__ import annotations

import numpy as np

from headjax.conversion.products import Products, relative_distance, squared_distance, squared_norm
from tests import tiny
from tests.closeness import assert_close
from tests.conversion.cases import layer_of, random_products, tensor


def test_norms_are_those_of_the_tensor_that_is_never_formed(products: Products) -> None:
    one, other = layer_of(products), layer_of(random_products(1))
    assert_close(squared_norm(one), np.square(tensor(one)).sum(), sums=tiny.SUMS)
    assert_close(squared_distance(one, other), np.square(tensor(one) - tensor(other)).sum(), sums=tiny.SUMS)
    expected = np.linalg.norm(tensor(one) - tensor(other)) / np.linalg.norm(tensor(one))
    assert_close(relative_distance(one, other), expected, sums=tiny.SUMS)
