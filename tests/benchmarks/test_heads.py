from __future__ import annotations

import sys

import pytest

from benchmarks import heads
from headjax.core.errors import HeadjaxError
from headjax.core.timing import Timing


def test_without_pytorch_it_says_so_before_anything_is_measured(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(heads, "bert", lambda *arguments, **fields: pytest.fail("measured"))
    with pytest.raises(HeadjaxError, match=r"^bench heads: needs the parity extra \(torch is not installed\)$"):
        heads.run()


def test_speed_up_is_how_many_times_as_fast():
    assert heads.speed_up({"whole": Timing(3.0, 0, 0, 5), "pruned": Timing(2.0, 0, 0, 5)}) == pytest.approx(1.5)
