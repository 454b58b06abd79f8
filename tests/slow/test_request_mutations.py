"""Mutated requests of every command, for long: `tests/commands/test_mutations.py` has some of them."""

from __future__ import annotations

import pytest

from tests.commands.test_mutations import REQUESTS, attack, mutated, pristine, sandbox  # noqa: F401

pytestmark = pytest.mark.attack


@pytest.mark.parametrize("seed", range(1, 26))
def test_mutated_requests_of_every_command(seed, pristine, sandbox):  # noqa: F811
    assert attack(mutated(REQUESTS), 500, seed, pristine, sandbox) == []
