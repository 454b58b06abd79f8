"""`headjax bench`: what is measured is printed and stored."""

import importlib.metadata
import json

import pytest

from headjax.bench.result import BenchResult
from headjax.cli import main
from headjax.report.tables import Column, Table


def test_the_command_prints_and_stores_it(monkeypatch, capsys, tmp_path):
    table = Table((Column("What"),), [("something",)])
    monkeypatch.setattr("headjax.bench.depth.run", lambda progress: BenchResult({"seconds": 2}, {}, 0.5, (table,)))
    assert main(["bench", "depth"]) == 0
    printed = capsys.readouterr().out
    assert "something" in printed
    assert "instruction sets" in printed
    assert f"jaxlib {importlib.metadata.version('jaxlib')}" in " ".join(printed.split())
    assert main(["bench", "depth", "--json", str(tmp_path / "depth.json")]) == 0
    stored = json.loads((tmp_path / "depth.json").read_text())
    assert stored["ours"] == {"seconds": 2}
    assert stored["ratio"] == pytest.approx(0.5)
    assert {"processor_model", "instruction_sets", "load_before", "threads", "versions"} <= set(stored["machine"])


def test_an_unknown_benchmark_is_one_line(capsys):
    assert main(["bench", "deepth"]) == 2
    assert capsys.readouterr().err.startswith("headjax: error: NAME: unknown benchmark 'deepth'; did you mean 'depth'?")
