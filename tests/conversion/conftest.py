"""Fixtures of the conversion tests."""

import pytest

from headjax.conversion.target import Products
from tests.conversion.cases import PADDED, encoder, hidden, random_products


@pytest.fixture(scope="module")
def model():
    return encoder()


@pytest.fixture(scope="module")
def outputs(model):
    return hidden(model, PADDED)


@pytest.fixture(scope="module")
def products() -> Products:
    return random_products()
