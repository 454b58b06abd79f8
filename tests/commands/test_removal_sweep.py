"""`headjax sweep --remove`: every removal is tried once."""

from __future__ import annotations

import contextlib
import json

import pytest

from headjax.cli import main
from headjax.core.errors import INTERRUPTED
from tests.commands.language_folder import write_language_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("removals")
    write_language_folder(folder, max_length=16)
    return folder


def sweep(folder, *words) -> list[str]:
    return ["sweep", str(folder / "model"), str(folder / "out"), "--task", str(folder / "text.txt"), *words]


@pytest.mark.whole
def test_every_removal_is_tried_once_and_kept(folder, capsys):
    words = ("--remove", "25%,50%", "--by", "random,importance+normalize", "--repair", "none,reconstruct")
    words = (*words, "--draws", "2", "--limit", "8", "--calibrate", "4", "--batch-size", "4")
    assert main([*sweep(folder, *words), "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    found = data["removals"]
    assert len(found) == 2 * 2 * 2 * 2
    assert {(trial["remove"], trial["removed"]) for trial in found} == {("25%", 1), ("50%", 2)}
    assert (data["agreement"], data["examples"], data["selection"]["examples"]) == ("kl", 8, 4)
    assert data["test"] == "paired t-test on losses"
    assert (folder / "out" / "removals.png").stat().st_size > 1000
    for bare, repaired in zip(found[::2], found[1::2], strict=True):
        assert (bare["repair"], repaired["repair"]) == ("none", "reconstruct")
        assert bare["against_none"] is None
        assert repaired["against_none"].keys() == {"difference", "p_value", "low", "high"}
    file = folder / "out" / "removals.jsonl"
    file.write_text(file.read_text().replace('"removed": 1', '"removed": 7', 1))
    assert main([*sweep(folder, *words), "--json", "-"]) == 0
    again = json.loads(capsys.readouterr().out)["removals"]
    assert again[0]["removed"] == 7
    assert again[1:] == found[1:]


def test_each_trial_is_kept_and_told_as_it_ends(folder, tmp_path, monkeypatch, capsys):
    told = []

    @contextlib.contextmanager
    def opened(title, total, unit):
        def update(done, values):
            if title == "removing heads":
                told.append((done, total, dict(values)))
                if len(told) == 1:
                    raise KeyboardInterrupt  # after the first of two repairs

        yield update

    monkeypatch.setattr("headjax.core.progress.shown_on", lambda console: opened)
    words = ["sweep", str(folder / "model"), str(tmp_path / "out"), "--task", str(folder / "text.txt")]
    words += ["--remove", "50%", "--by", "random", "--repair", "none,rescale", "--limit", "8", "--calibrate", "4"]
    assert main([*words, "--batch-size", "4"]) == INTERRUPTED
    assert len((tmp_path / "out" / "removals.jsonl").read_text().splitlines()) == 1
    assert main([*words, "--batch-size", "4"]) == 0
    assert [(done, total) for done, total, _ in told] == [(1, 2), (1, 2), (2, 2)]
    assert told[0][2].keys() == told[1][2].keys() == {"perplexity"}
