"""Outputs over inputs, model directories and files of the user: refused without --overwrite, and nothing changes."""

import hashlib
import json

import pytest

from headjax.cli import main


def contents(folder):
    return {str(file): hashlib.md5(file.read_bytes()).hexdigest() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def place(folder, tmp_path, monkeypatch):
    """A folder with a link to a model directory, a config, a table and a text."""
    (tmp_path / "model").symlink_to(folder / "model")
    (tmp_path / "c.py").write_text("get_config = None\n")
    (tmp_path / "rows.tsv").write_text("text\tlabel\ngood\t1\n")
    (tmp_path / "other.json").write_text('{"mine": 1}\n')
    (tmp_path / "text.txt").write_text("text\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "model", "--json", "model/config.json"),
        ("inspect", "model", "--json", "model/new.json"),
        ("inspect", "model", "--json", "model/params/new.json"),
        ("inspect", "--config", "c.py", "--json", "c.py"),
        ("inspect", "--config", "c.py:smoke", "--json", "c.py"),
        ("inspect", "model", "--json", "other.json"),
        ("tasks", "--json", "rows.tsv"),
        ("tokenizer", "text.txt", "--out", "model/tokenizer"),
        ("tokenizer", "text.txt", "--out", "model"),
        ("predict", "model", "--task", "rows.tsv", "--out", "rows.tsv"),
        ("predict", "model", "--text", "a", "--out", "rows.tsv"),
        ("evaluate", "model", "--task", "all:text.txt", "--json", "text.txt"),
        ("report", "model", "--out", "heads.html", "--task", "text.txt", "--json", "heads.html"),
        ("report", "model", "--out", "text.txt", "--task", "python"),
        ("train", "--config", "c.py", "--workdir", "model"),
        ("sharing", "model", "--plots", "model/plots"),
        ("convert", "model", "model/smaller", "--to", "deep"),
        ("convert", "model", "model", "--to", "deep"),
        ("prepare", "multi30k", "--out", "model/data", "--source", "text.txt"),
        ("sweep", "model", "model", "--task", "text.txt", "--remove", "1"),
        ("quickstart", "--workdir", "model/run"),
    ],
)
def test_what_is_there_stays(words, place, folder, capsys):
    before = contents(place), contents(folder / "model")
    assert main(list(words)) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert (contents(place), contents(folder / "model")) == before


def test_older_results_are_replaced(place, capsys):
    for _ in range(2):
        assert main(["inspect", "model", "--json", "result.json"]) == 0
    assert json.loads((place / "result.json").read_text())["heads"] == 4
    assert main(["inspect", "model", "--json", "other.json", "--overwrite"]) == 0
    assert json.loads((place / "other.json").read_text())["heads"] == 4
    (place / "empty.json").write_text("")
    assert main(["inspect", "model", "--json", "empty.json"]) == 0
    assert main(["inspect", "model", "--json", "/dev/stderr"]) == 0
