"""`headjax compare`: a model beside itself, and beside itself with fewer heads."""

from __future__ import annotations

import json

import pytest

from headjax.cli import main


def test_compare(folder, capsys):
    model, pruned = str(folder / "model"), str(folder / "fewer")
    assert main(["prune", model, pruned, "--remove", "decoder/0/0"]) == 0
    capsys.readouterr()
    words = ["--task", str(folder / "text.txt"), "--limit", "8", "--batch-size", "4", "--repeats", "2", "--json", "-"]
    assert main(["compare", model, pruned, *words]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["heads"] == [4, 3]
    assert data["parameters"][0] > data["parameters"][1]
    assert data["bytes"] == [4 * count for count in data["parameters"]]
    assert data["agreement"] > 0
    assert data["agreement_measure"].startswith("mean KL(A, B)")
    assert data["test"] == "paired t-test on losses"
    assert 0 <= data["significance"]["p_value"] <= 1
    assert main(["compare", model, model, *words]) == 0
    same = json.loads(capsys.readouterr().out)
    assert same["agreement"] == pytest.approx(0.0, abs=1e-6)
    assert same["metrics"][0] == same["metrics"][1] == data["metrics"][0]
