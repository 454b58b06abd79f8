"""`headjax grid`: any cell alone, the rest later, a table of means, and one line for what is no grid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headjax.cli import main
from headjax.core.errors import FAILED, INTERRUPTED
from tests.training.test_grid import CONFIG


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    text = tmp_path / "text.txt"
    text.write_text("the heads of a model attend to many things. " * 20)
    file = tmp_path / "config.py"
    file.write_text(CONFIG.replace("PATH", repr(str(text))))
    over = ["--over", "peak=0.01/1e30", "--seeds", "2"]
    return ["grid", str(tmp_path / "out"), "--config", str(file), *over, "--json", str(tmp_path / "grid.json")]


def run(words: list[str]) -> tuple[int, dict[str, object]]:
    code = main(words)
    return code, json.loads(Path(words[-1]).read_text())


def test_cells_run_alone_and_are_collected(words: list[str], tmp_path: Path) -> None:
    code, one = run([*words[:-2], "--cell", "2/4", *words[-2:]])
    assert (code, one["ended"], one["missing"]) == (0, 1, ["1/4", "3/4", "4/4"])
    assert one["plot"] == str(tmp_path / "out" / "grid.png")
    before = (tmp_path / "out" / "peak=0.01,seed=1.json").read_text()
    code, whole = run(["sweep", *words[1:]])  # the same command by its other name
    assert (code, whole["ended"], whole["missing"], whole["cells"]) == (0, 4, [], 4)
    assert (tmp_path / "out" / "peak=0.01,seed=1.json").read_text() == before
    good, bad = whole["summaries"]
    losses = [each["metrics"]["loss"] for each in whole["results"][:2]]
    assert good["values"] == losses
    assert good["mean"] == pytest.approx(sum(losses) / 2)
    assert good["low"] < good["mean"] < good["high"]
    assert (bad["runs"], bad["diverged"], bad["mean"]) == (0, 2, None)
    for file in (tmp_path / "out").glob("*.json"):
        file.unlink()
    code, none = run([*words[:-2], "--collect", *words[-2:]])
    assert (code, none["ended"], len(none["missing"]), none["plot"]) == (0, 0, 4, None)


def test_an_interrupted_grid_says_where_it_goes_on(words, monkeypatch, capsys) -> None:
    monkeypatch.setattr("headjax.training.grid.Grid.run", lambda grid, number, *rest: False)
    assert main(words) == INTERRUPTED
    assert "interrupted in cell 1/4; the same command goes on from there" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--cell", "5/4"], "--cell: must be from 1 to 4, got 5"),
        (["--cell", "1/3"], "--cell: the grid has 4 cells, not 3"),
        (["--cell", "1/4", "--collect"], "--cell: --collect runs no cell"),
        (["--over", "depth=1/2"], "unknown argument 'depth'"),
        (["--over", "heads"], "--over: expected SETTING=VALUE/VALUE, got 'heads'"),
    ],
)
def test_bad_requests_are_one_line(words, more, message, capsys, tmp_path) -> None:
    assert main([*words, *more]) == FAILED
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()
