"""Every command says which examples it chose heads on and which it took metrics on, and they are not the same."""

from __future__ import annotations

import json

import pytest

from headjax.cli import main
from headjax.evaluation.selection import RULE, split_task
from headjax.evaluation.specs import load_task
from headjax.heads.scores import score_heads
from headjax.models.model import load
from tests import tiny
from tests.closeness import close_to
from tests.commands.language_folder import write_language_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, a text that is split by itself, and two that have one split only."""
    folder = tmp_path_factory.mktemp("examples")
    write_language_folder(folder, max_length=32)
    for name in ("one", "other"):
        (folder / f"{name}.txt").write_text("".join(f"{name} {i} of {i * i}\n" for i in range(80)))
    return folder


@pytest.fixture
def run(folder, capsys, monkeypatch):
    """Runs a command on the model and returns its JSON and what it printed for people, as one line."""

    monkeypatch.chdir(folder)

    def run(command, *words):
        assert main([command, "model", *words, "--batch-size", "4", "--json", "result.json"]) == 0
        return json.loads((folder / "result.json").read_text()), " ".join(capsys.readouterr().out.split())

    return run


def importance(folder, batches):
    values = score_heads(load(folder / "model"), batches).score("importance")
    return {str(head): close_to(value, sums=2 * tiny.SUMS) for head, value in values.items()}


def test_scores_are_those_of_the_training_examples(run, folder):
    model, text = load(folder / "model"), str(folder / "text.txt")
    data, shown = run("score", "--task", "text.txt", "--limit", "8")
    train = load_task(text, model, split="train")
    assert data["scores"]["importance"] == importance(folder, train.batches(4, limit=8))
    assert data["selection"] == {"task": "text.txt", "split": "train", "examples": 8}
    assert data["evaluation"] is None
    assert "Selection: 8 examples of text.txt, train." in shown
    data, _ = run("score", "--task", "text.txt", "--limit", "8", "--select", "validation")
    assert data["scores"]["importance"] == importance(folder, load_task(text, model).batches(4, limit=8))
    data, _ = run("score", "--task", "text.txt", "--limit", "8", "--select", "all:other.txt", "--selected", "5")
    assert data["selection"] == {"task": "other.txt", "split": "all", "examples": 5}


@pytest.mark.parametrize(
    "words",
    [
        ("prune", "out", "--overwrite", "--remove", "2"),
        ("prune", "out", "--overwrite", "--max-drop", "50%", "--by", "random"),
        ("prune", "out", "--overwrite", "--speed-up", "1"),
        ("prune", "out", "--overwrite", "--remove", "decoder/0/1", "--rescale"),
        ("convert", "out", "--overwrite", "--to", "collaborative:shared_dim=8", "--calibrate", "2"),
        ("sweep", "trials", "--to", "grouped:kv_heads=1", "--calibrate", "1"),
        ("report", "--orders", "importance", "--seeds", "1", "--percentages", "50", "--out", "heads.html"),
        ("ablate", "--resamples", "5"),
        ("sharing",),
    ],
)
def test_a_task_with_one_split_is_divided_and_every_command_says_so(run, folder, words):
    data, shown = run(*words, "--task", "all:one.txt")
    selection, evaluation = split_task(load_task("all:one.txt", load(folder / "model")))
    assert data["evaluation"] == {
        "task": "one.txt", "split": "evaluation half", "examples": evaluation.count(), "rule": RULE,
    }  # fmt: skip
    assert f"Evaluation: {evaluation.count()} examples of one.txt, evaluation half." in shown
    assert "The task has one split" in shown
    if words[0] in ("ablate", "sharing"):
        assert data["selection"] is None
    else:
        assert data["selection"]["split"] == "selection half"
        assert 0 < data["selection"]["examples"] <= selection.count()


def test_what_is_chosen_is_chosen_on_the_selection_examples(run, folder):
    """The same count of heads from other examples: the order is theirs, the metrics are those of the task."""
    model = load(folder / "model")
    for select, task in (("train", "text.txt"), ("all:one.txt", "all:one.txt")):
        chosen = split_task(load_task("text.txt", model), load_task(task, model)).selection
        scores = score_heads(model, chosen.batches(4, limit=12)).score("importance")
        words = ("--remove", "2", "--task", "text.txt", "--limit", "12", "--select", select)
        data, _ = run("prune", "out", "--overwrite", *words)
        assert data["removed"] == [str(head) for head in sorted(scores, key=scores.get)[:2]]
        assert data["evaluation"] == {"task": "text.txt", "split": "validation", "examples": 12}
        assert data["selection"]["task"] == task.removeprefix("all:")


def test_named_heads_need_no_selection(run):
    data, shown = run("prune", "out", "--overwrite", "--remove", "decoder/0/1", "--task", "text.txt", "--limit", "8")
    assert data["selection"] is None
    assert "Selection" not in shown
    data, _ = run("evaluate", "--task", "all:one.txt")
    whole = len(load_task("all:one.txt", load("model")).data.validation)
    assert data["examples"] == whole
    assert data["evaluation"] == {"task": "one.txt", "split": "all", "examples": whole}
