"""`python -m benchmarks`: tables, the machine, JSON, and a plot."""

import importlib.metadata
import json

import pytest

import headjax
from benchmarks.__main__ import main
from benchmarks.result import BenchResult
from headjax.report.tables import Column, Table


def test_a_benchmark_is_printed_and_stored(monkeypatch, capsys, tmp_path):
    table = Table((Column("What"),), [("something",)])
    monkeypatch.setattr("benchmarks.heads.run", lambda progress: BenchResult({"seconds": 2}, {}, 0.5, (table,)))
    main(["heads", "--json", str(tmp_path / "heads.json")])
    printed = capsys.readouterr().out
    assert "something" in printed
    assert f"jaxlib {importlib.metadata.version('jaxlib')}" in " ".join(printed.split())
    stored = json.loads((tmp_path / "heads.json").read_text())
    assert (stored["ours"], stored["ratio"]) == ({"seconds": 2}, 0.5)
    assert {"processor_model", "instruction_sets", "load_before", "threads", "versions"} <= set(stored["machine"])


def test_scaling_takes_a_size_and_draws_a_plot(monkeypatch, tmp_path):
    sizes = []

    def run(progress, size="full"):
        sizes.append(size)
        plot = headjax.plots.line_plot(
            {"depth": [(1, 1.0), (2, 2.0)]}, title="Costs", x_label="depth", y_label="seconds"
        )
        return BenchResult({}, {}, 1.0, (), plot=plot)

    monkeypatch.setattr("benchmarks.scaling.run", run)
    main(["scaling", "--size", "short", "--plot", str(tmp_path / "curves.png")])
    assert sizes == ["short"]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit):
        main(["heads", "--size", "short"])
