"""Parameters of a test of which a few run in `make test`, and all with `make test-slow`."""

from collections.abc import Iterable
from typing import Any

import pytest


def first(count: int, values: Iterable[Any]) -> list[Any]:
    """Return the values, those after the first few marked as tests of whole programs."""
    return [
        value if place < count else pytest.param(value, marks=pytest.mark.whole) for place, value in enumerate(values)
    ]
