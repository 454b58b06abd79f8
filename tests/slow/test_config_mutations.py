"""Mutated configs, for long: `tests/configs/test_mutations.py` has some of them."""

from __future__ import annotations

import pytest

from tests.mutations import complaints

pytestmark = pytest.mark.attack


@pytest.mark.parametrize("seed", range(1, 26))
def test_a_mutated_config_builds_or_is_refused_in_one_line(seed, tmp_path):
    found = complaints(seed, 1000, tmp_path)
    assert not found, "\n\n".join(found.values())
