"""The scripts of studies: grids of runs, removals and conversions, whose JSON `results.collect` reads."""

import json
import re
import runpy
from pathlib import Path

import pytest

import headjax
from results import conversions, grid, removals
from results.collect import rows_of
from results.grid import Cell, cells
from tests import tiny
from tests.commands.language_folder import write_language_folder

ROOT = Path(__file__).parents[2]


def test_a_grid_holds_every_combination_with_every_seed():
    found = list(cells(["heads,width=1,8/2,16", "config.batch_size=8/4"], 3))
    assert len({cell.name for cell in found}) == len(found) == 12
    assert found[4] == Cell({"heads": "1", "width": "8", "config.batch_size": "4"}, 1)
    assert found[4].name == "heads=1,width=8,config.batch_size=4,seed=1"
    for bad in ("heads,width=1/2,3", "heads,width=1,2/3"):
        with pytest.raises(ValueError, match="zip"):
            list(cells([bad], 1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripts")
    write_language_folder(folder, max_length=32)
    (folder / "config.py").write_text(tiny.config_file())
    return folder


@pytest.mark.whole
def test_runs_are_trained_once_and_another_config_is_refused(folder, tmp_path):
    words = [str(tmp_path / "runs"), "--config", str(folder / "config.py"), "--json", str(tmp_path / "grid.json")]
    words += [f"--config.data.task={folder / 'text.txt'}", "--config.steps=2", "--seeds", "2"]
    grid.main(words)
    first = json.loads((tmp_path / "grid.json").read_text())
    assert [run["seed"] for run in first["results"]] == [0, 1]
    assert all(row.value > 0 for row in rows_of(first, ""))
    grid.main(words)
    assert json.loads((tmp_path / "grid.json").read_text()) == first
    with pytest.raises(headjax.CheckpointError, match=r"config\.batch_size"):
        grid.main([*words, "--config.batch_size=16"])


@pytest.mark.whole
def test_removals_and_conversions_become_rows(folder, tmp_path):
    words = [str(folder / "model"), str(tmp_path / "out.json"), "--task", str(folder / "text.txt")]
    words += ["--limit", "8", "--batch-size", "4", "--calibrate", "8"]
    removals.main([*words, "--remove", "50%", "--by", "random,importance", "--repair", "none,reconstruct"])
    found = json.loads((tmp_path / "out.json").read_text())
    assert [trial["removed"] for trial in found["removals"]] == [2] * 4
    metrics = {row.metric for row in rows_of(found, "")}
    assert {"perplexity", "kl", "loss change", "loss gain"} <= metrics
    conversions.main([*words, "--to", "grouped:kv_heads=2/1"])
    found = json.loads((tmp_path / "out.json").read_text())
    original, same, *_, last = found["trials"]
    assert same["metrics"]["loss"] == pytest.approx(original["metrics"]["loss"], rel=1e-4)
    assert 2 * last["cache"] == original["cache"] > 0
    assert {"perplexity", "cache", "loss change"} <= {row.metric for row in rows_of(found, "")}


@pytest.mark.attack  # the notebook of the same name is looked at in `make test-slow`, and `make test-pythons` runs this
def test_the_quickstart_prints_what_it_measures(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    names = runpy.run_path(str(ROOT / "examples" / "quickstart.py"))
    printed = capsys.readouterr().out
    assert f"perplexity of held-out text: {names['whole']:.2f}" in printed
    (line,) = (line for line in printed.splitlines() if line.startswith("half of the heads gated off: "))
    gated, removed = map(float, re.findall(r"[\d.]+", line))
    assert gated == pytest.approx(removed, rel=1e-4)
    assert f"{names['whole']:.2f}" in names["PAGE"].read_text()
