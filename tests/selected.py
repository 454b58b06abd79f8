"""Parameters of a test of which a few run in `make test`; others wait for `make test-slow` or `make attack`."""

from collections.abc import Iterable
from typing import Any

import pytest


def first(count: int, values: Iterable[Any]) -> list[Any]:
    """Return the values, those after the first few marked for `make test-slow`."""
    every = list(values)
    return every[:count] + [pytest.param(value, marks=pytest.mark.whole) for value in every[count:]]


def further(*values: Any) -> Any:
    """A case that differs from others in combination alone, left to `make attack`."""
    return pytest.param(*values, marks=pytest.mark.attack)
