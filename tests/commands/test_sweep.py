"""`headjax sweep`: every size is tried once."""

from __future__ import annotations

import json

import pytest

from headjax.cli import main
from tests import tiny
from tests.closeness import close_to
from tests.commands.language_folder import write_language_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharing")
    write_language_folder(folder, max_length=16)
    return folder


def sweep(folder, *words) -> list[str]:
    return ["sweep", str(folder / "model"), str(folder / "out"), "--task", str(folder / "text.txt"), *words]


@pytest.mark.whole
def test_every_size_is_tried_once_and_kept(folder, capsys):
    words = ("--to", "grouped:kv_heads=2/1", "--limit", "8", "--calibrate", "2", "--fine-tune", "1")
    assert main([*sweep(folder, *words), "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    original, *trials = data["trials"]
    variants = ("plain", "calibrated", "fine-tuned")
    targets = ("grouped:kv_heads=2", "grouped:kv_heads=1")
    assert [(t["to"], t["variant"]) for t in trials] == [(to, variant) for to in targets for variant in variants]
    same, _, trained, plain, calibrated, _ = trials
    assert same["cosine"] == close_to(1.0, sums=tiny.SUMS)
    assert same["metrics"]["perplexity"] == close_to(original["metrics"]["perplexity"], sums=16 * tiny.SUMS)
    assert trained["metrics"]["perplexity"] != same["metrics"]["perplexity"]
    # Each way to convert is best at what it minimises.
    assert plain["relative_error"] < calibrated["relative_error"]
    assert calibrated["logit_error"] < plain["logit_error"]
    assert plain["cosine"] < 0.9999
    assert plain["parameters"] < same["parameters"] == original["parameters"]
    assert 2 * plain["cache"] == same["cache"] == original["cache"] > 0
    assert same["against_original"]["p_value"] > plain["against_original"]["p_value"]
    assert data["test"] == "paired t-test on losses"
    assert (folder / "out" / "sweep.png").stat().st_size > 1000
    file = folder / "out" / "trials.jsonl"
    before = file.read_text()
    file.write_text(before.replace(f'"parameters": {plain["parameters"]}', '"parameters": 1', 1))
    assert main([*sweep(folder, *words), "--json", "-"]) == 0
    again = json.loads(capsys.readouterr().out)["trials"]
    assert again[4]["parameters"] == 1
    assert [trial["cosine"] for trial in again] == [trial["cosine"] for trial in data["trials"]]
