"""The decomposition benchmark: errors are true distances, and what is missing is said before anything is timed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from headjax.bench import decompose
from headjax.core.errors import HeadjaxError
from tests.closeness import assert_close


def test_the_reported_error_is_the_distance_of_the_tensors(tmp_path, monkeypatch, capsys) -> None:
    generator = np.random.default_rng(0)
    query, key = (generator.standard_normal((2, 8, 3, 2)).astype(np.float32) for _ in range(2))
    np.savez(tmp_path / "weights.npz", query=query, key=key)
    left, mixing, right = (generator.standard_normal((rows, 4)) for rows in (8, 3, 8))
    monkeypatch.setitem(decompose.DECOMPOSERS, "fake", lambda: lambda query, key: [(left, mixing, right)] * 2)
    decompose.decompose_and_report("fake", str(tmp_path / "weights.npz"))
    found = json.loads(capsys.readouterr().out)
    tensor = np.einsum("ldhi,lehi->lhde", query, key)
    distance = np.sqrt(np.square(tensor - np.einsum("dr,hr,er->hde", left, mixing, right)).sum((1, 2, 3)))
    assert_close(found["errors"], distance / np.sqrt(np.square(tensor).sum((1, 2, 3))), sums=3 * 8 * 8)
    assert found["peak_bytes"] >= found["before_bytes"] > 0


def test_without_the_model_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(decompose, "PACKAGE", "no_such_package_of_weights")
    with pytest.raises(HeadjaxError, match="not installed"):
        decompose.read_weights()
