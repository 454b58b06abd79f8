"""`headjax bench`: what is measured is printed and stored."""

import importlib.metadata
import json

import pytest

from benchmarks.result import BenchResult
from headjax.cli import main
from headjax.report.curves import line_plot
from headjax.report.tables import Column, Table


def test_the_command_prints_and_stores_it(monkeypatch, capsys, tmp_path):
    table = Table((Column("What"),), [("something",)])
    monkeypatch.setattr("benchmarks.heads.run", lambda progress: BenchResult({"seconds": 2}, {}, 0.5, (table,)))
    assert main(["bench", "heads"]) == 0
    printed = capsys.readouterr().out
    assert "something" in printed
    assert "instruction sets" in printed
    assert f"jaxlib {importlib.metadata.version('jaxlib')}" in " ".join(printed.split())
    assert main(["bench", "heads", "--json", str(tmp_path / "heads.json")]) == 0
    stored = json.loads((tmp_path / "heads.json").read_text())
    assert stored["ours"] == {"seconds": 2}
    assert stored["ratio"] == pytest.approx(0.5)
    assert {"processor_model", "instruction_sets", "load_before", "threads", "versions"} <= set(stored["machine"])


def test_an_unknown_benchmark_is_one_line(capsys):
    assert main(["bench", "haeds"]) == 2
    assert capsys.readouterr().err.startswith("headjax: error: NAME: unknown benchmark 'haeds'; did you mean 'heads'?")


def test_scaling_takes_a_size_and_draws_a_plot(monkeypatch, capsys, tmp_path):
    sizes = []

    def run(progress, size="full"):
        sizes.append(size)
        plot = line_plot({"depth": [(1, 1.0), (2, 2.0)]}, title="Costs", x_label="depth", y_label="seconds")
        return BenchResult({}, {}, 1.0, (), plot=plot)

    monkeypatch.setattr("benchmarks.scaling.run", run)
    assert main(["bench", "scaling"]) == 0
    assert main(["bench", "scaling", "--size", "short", "--plot", str(tmp_path / "curves.png")]) == 0
    assert main(["bench", "scaling", "--plot", str(tmp_path / "curves.svg")]) == 0
    assert sizes == ["full", "short", "full"]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "curves.svg").read_text()
    capsys.readouterr()
    assert main(["bench", "scaling", "--plot", str(tmp_path / "curves.txt")]) == 2
    assert "--plot: expected a name that ends in .png or .svg" in capsys.readouterr().err
    assert main(["bench", "scaling", "--size", "huge"]) == 2
    assert "--size" in capsys.readouterr().err
    assert len(sizes) == 3


def test_other_benchmarks_have_neither_size_nor_plot(monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.heads.run", None)
    assert main(["bench", "heads", "--size", "short"]) == 2
    assert capsys.readouterr().err == "headjax: error: --size: is for scaling, not for heads\n"
    assert main(["bench", "heads", "--plot", "x.png"]) == 2
    assert capsys.readouterr().err == "headjax: error: --plot: is for scaling, not for heads\n"


def test_a_wheel_has_no_benchmarks(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("headjax.commands.bench.CHECKOUT", tmp_path)
    assert main(["bench", "heads"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "checkout" in line
    assert str(tmp_path / "benchmarks") in line
