"""A disk that fills up or becomes read-only, at every write of every command: one line, and nothing is lost."""

from __future__ import annotations

import pytest

from tests.slow import faults
from tests.slow.writers import WRITERS

TRIES = 1
"""Operations of a command, about, at which `make test-slow` lets each fault in; `make attack` takes all."""

FEW = pytest.param(tuple(WRITERS), TRIES, id="all")
ALL = [pytest.param((name,), 0, marks=pytest.mark.attack, id=name) for name in WRITERS]


@pytest.mark.skipif(faults.missing() is not None, reason=str(faults.missing()))
@pytest.mark.parametrize(("names", "tries"), [FEW, *ALL])
def test_every_command(names, tries, tmp_path):
    found = faults.run_attack(names, tries, tmp_path)
    assert tuple(found) == names
    for name, by_fault in found.items():
        for fault, (moments, tried, failures) in by_fault.items():
            print(f"{name}: {fault} at {tried} of {moments} operations")
            assert tried > 0, name
            assert not failures[:5], name
