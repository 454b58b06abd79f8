"""Every command says which examples it chose heads on and which it took metrics on, and they are not the same."""

import json

import pytest

from headjax.cli import main
from headjax.evaluation.selection import RULE, selection_of, split_task
from headjax.evaluation.specs import load_task
from headjax.heads.ordering import by_scores
from headjax.heads.scores import score_heads
from headjax.models.model import load
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from tests import tiny
from tests.closeness import close_to
from tests.commands.language_folder import write_language_folder
from tests.data.vocabulary import WORDS, write_lines, write_vocabulary
from tests.hub.directories import BERT, model_of


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
        order = by_scores(score_heads(model, chosen.batches(4, limit=12)), "importance")
        words = ("--remove", "2", "--task", "text.txt", "--limit", "12", "--select", select)
        data, _ = run("prune", "out", "--overwrite", *words)
        assert data["removed"] == [str(head) for head in order[:2]]
        assert data["evaluation"] == {"task": "text.txt", "split": "validation", "examples": 12}
        assert data["selection"]["task"] == task.removeprefix("all:")


def test_training_examples_come_from_a_file(run, folder):
    """`--train FILE`: heads are chosen and models trained on all of it, and all of the task measures."""
    model = load(folder / "model")
    train = load_task("all:other.txt", model)
    whole = load_task("all:one.txt", model).count()
    evaluation = {"task": "one.txt", "split": "all", "examples": whole}
    files = ("--task", "one.txt", "--train", "other.txt")
    data, shown = run("score", *files, "--selected", "8")
    assert data["scores"]["importance"] == importance(folder, selection_of(train).batches(4, limit=8))
    assert data["selection"] == {"task": "other.txt", "split": "all", "examples": 8}
    data, _ = run("ablate", "--resamples", "5", *files)
    assert data["evaluation"] == evaluation
    data, shown = run("prune", "out", "--overwrite", "--remove", "1", "--fine-tune", "1", *files)
    chosen = {"task": "other.txt", "split": "all", "examples": train.count()}
    assert (data["selection"], data["training"], data["evaluation"]) == (chosen, chosen, evaluation)
    assert f"Fine-tuning: {train.count()} examples of other.txt, all." in shown
    # Heads may be chosen on other examples than those to train on.
    data, _ = run("prune", "out", "--overwrite", "--remove", "1", *files, "--select", "validation")
    assert data["selection"] == evaluation
    assert "training" not in data


def test_fine_tuning_names_its_examples(run, folder):
    words = ("prune", "out", "--overwrite", "--remove", "1", "--by", "random", "--fine-tune", "1")
    data, _ = run(*words, "--task", "all:one.txt")
    half = split_task(load_task("all:one.txt", load(folder / "model"))).selection
    assert data["training"] == {"task": "one.txt", "split": "selection half", "examples": half.count()}


def test_calibration_counts_examples(run):
    words = ("convert", "out", "--overwrite", "--to", "collaborative:shared_dim=8", "--task", "text.txt")
    data, shown = run(*words, "--limit", "8", "--calibrate", "3")
    assert data["selection"] == {"task": "text.txt", "split": "train", "examples": 3}
    assert "Calibration: 3 examples of text.txt, train." in shown
    data, _ = run(*words, "--limit", "8", "--calibrate", "9", "--calibration", "all:one.txt")
    assert data["selection"] == {"task": "one.txt", "split": "all", "examples": 8}
    data, _ = run(*words, "--limit", "8", "--calibration", "all:one.txt")
    assert data["selection"]["examples"] == 8
    data, _ = run(*words, "--limit", "8", "--train", "other.txt", "--calibrate", "4")
    assert data["selection"] == {"task": "other.txt", "split": "all", "examples": 4}
    data, _ = run(*words, "--limit", "8", "--train", "other.txt")
    assert data["selection"] is None


@pytest.mark.whole
def test_a_table_with_one_split_calibrates(tmp_path, capsys):
    """`convert --task my.tsv --calibrate 8` once found no examples to train on."""
    tokenizer = wordpiece_tokenizer(write_vocabulary(tmp_path))
    fields = BERT | {"vocab_size": len(WORDS), "max_position_embeddings": 16, "num_labels": 2}
    model_of(fields).replace(tokenizer=tokenizer).save(tmp_path / "model")
    rows = [f"{one} {other}\t{i % 2}" for i, one in enumerate(WORDS[5:9]) for other in WORDS[9:13]]
    write_lines(tmp_path / "my.tsv", "sentence\tlabel", *rows)
    words = ["convert", str(tmp_path / "model"), str(tmp_path / "out"), "--to", "collaborative:shared_dim=4"]
    words += ["--task", str(tmp_path / "my.tsv"), "--calibrate", "8", "--batch-size", "8", "--json", "-"]
    assert main(words) == 0
    data = json.loads(capsys.readouterr().out)
    half = {"task": str(tmp_path / "my.tsv"), "examples": 8, "rule": RULE}
    assert data["selection"] == half | {"split": "selection half"}
    assert data["evaluation"] == half | {"split": "evaluation half"}


def test_named_heads_need_no_selection(run):
    data, shown = run("prune", "out", "--overwrite", "--remove", "decoder/0/1", "--task", "text.txt", "--limit", "8")
    assert data["selection"] is None
    assert "Selection" not in shown
    data, _ = run("evaluate", "--task", "all:one.txt")
    whole = len(load_task("all:one.txt", load("model")).data.validation)
    assert data["examples"] == whole
    assert data["evaluation"] == {"task": "one.txt", "split": "all", "examples": whole}
