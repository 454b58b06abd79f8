"""Parameters of a test of which a few run in `make test`, and all with `make test-slow`."""

from collections.abc import Iterable
from typing import Any

import pytest


def first(count: int, values: Iterable[Any]) -> list[Any]:
    """Return the values, those after the first few marked for `make test-slow`."""
    every = list(values)
    return every[:count] + [pytest.param(value, marks=pytest.mark.whole) for value in every[count:]]
