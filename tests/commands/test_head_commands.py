"""score, ablate, prune and convert from the command line: the contract's keys, and numbers that agree."""

import json
import re

import pytest

from headjax.attention import MultiHead
from headjax.cli import main
from headjax.commands.ablate import size_in_bytes
from headjax.models.model import load
from tests import tiny
from tests.closeness import assert_close, assert_numbers_close, close_to, tolerance
from tests.commands.language_folder import write_language_folder

PERPLEXITY_SUMS = 16 * tiny.SUMS
"""A rounding of the loss, near 4, is four times as large a share of the perplexity."""
HEADS = [f"decoder/{layer}/{head}" for layer in range(2) for head in range(2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model directory with random weights and a text to try it on."""
    folder = tmp_path_factory.mktemp("commands")
    write_language_folder(folder, max_length=32)
    (folder / "empty.txt").write_text("")
    (folder / "labels.tsv").write_text("sentence\tlabel\ngood\t1\nbad\t0\n")
    return folder


@pytest.fixture
def run(folder, capsys):
    """Runs a command on the model and returns its JSON."""

    def run(command, *arguments, out=None, task=True):
        words = [command, str(folder / "model"), *([str(folder / out)] if out else []), *arguments]
        words += ["--task", str(folder / "text.txt"), "--limit", "16", "--batch-size", "8"] if task else []
        assert main([*words, "--json", "-"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_score(run):
    data = run("score")
    assert {"scores", "examples", "seconds"} <= data.keys()
    assert data["examples"] == 16
    for name in ("importance", "importance_token", "importance_batch", "fisher", "entropy", "hies", "output_norm"):
        assert sorted(data["scores"][name]) == HEADS
    importance = data["scores"]["importance"]
    normal = run("score", "--normalize")["scores"]["importance"]
    size = (importance["decoder/0/0"] ** 2 + importance["decoder/0/1"] ** 2) ** 0.5
    assert normal["decoder/0/1"] == close_to(importance["decoder/0/1"] / size, sums=2 * tiny.SUMS)


def test_ablate_agrees_with_pruning(run):
    data = run("ablate", "--mode", "each,all-but-one")
    assert {"baseline", "effect"} <= data.keys()
    assert data["metric"] == "perplexity"
    assert sorted(data["effect"]) == HEADS
    assert set(data["modes"]) == {"each", "all-but-one"}
    pruned = run("prune", "--remove", "decoder/1/0", out="without-one")
    assert pruned["metrics_before"]["perplexity"] == close_to(data["baseline"]["perplexity"], sums=PERPLEXITY_SUMS)
    change = pruned["metrics"]["perplexity"] - pruned["metrics_before"]["perplexity"]
    scale = data["baseline"]["perplexity"]
    assert_close(data["effect"]["decoder/1/0"], change, sums=PERPLEXITY_SUMS, scale=scale)
    # With two heads a layer, keeping one alone is removing the other.
    alone = data["modes"]["all-but-one"]["effect"]["decoder/1/1"]
    assert_close(alone, data["effect"]["decoder/1/0"], sums=PERPLEXITY_SUMS, scale=scale)


def test_prune_removes_what_scores_least(run, folder):
    importance = run("score")["scores"]["importance"]
    data = run("prune", "--remove", "50%", out="half")
    assert {"kept", "removed", "parameters", "metrics"} <= data.keys()
    assert data["removed"] == sorted(importance, key=importance.get)[:2]
    assert sorted(data["kept"] + data["removed"]) == HEADS
    model = load(folder / "half")
    assert model.num_parameters == data["parameters"] < data["parameters_before"]
    assert model.history[-1]["action"] == "prune"
    assert model.tokenizer is not None


@pytest.mark.parametrize(
    "arguments",
    [
        ("--remove", "4", "--by", "random", "--minimum", "1"),
        ("--remove", "3", "--by", "fisher", "--steps", "2"),
        ("--remove", "1", "--by", "ablation"),
        ("--remove", "2", "--by", "hies", "--normalize", "--stacks", "decoder"),
    ],
)
def test_orders(run, arguments, capsys, folder):
    if "--minimum" in arguments:
        out = str(folder / "never")
        assert main(["prune", str(folder / "model"), out, *arguments]) == 2
        assert "only 2 may be removed" in capsys.readouterr().err
        assert not (folder / "never").exists()
        return
    assert len(run("prune", *arguments, out="ordered")["removed"]) == int(arguments[1])


def test_as_many_heads_as_a_drop_allows(run):
    """By bisection: the metric stays within the drop, and all heads go where nothing is too dear.

    The drop is judged on the selection examples, which are here those that the metrics are taken on.
    """
    data = run("prune", "--max-drop", "0%", "--by", "random", "--select", "validation", out="dear")
    assert data["metrics"]["perplexity"] <= data["metrics_before"]["perplexity"] * (1 + tolerance(PERPLEXITY_SUMS))
    assert data["gated_metric"] == close_to(data["metrics"]["perplexity"], sums=PERPLEXITY_SUMS)
    data = run("prune", "--max-drop", "1e12", "--by", "random", out="cheap")
    assert sorted(data["removed"]) == HEADS


def test_a_speed_up_is_predicted_and_measured(run):
    data = run("prune", "--speed-up", "1", "--by", "random", out="fast")
    assert data["removed"] == []
    assert data["predicted_speed_up"] == pytest.approx(1.0)
    assert data["speed_up"] > 0


def test_fine_tuning_between_steps(run, folder):
    tuning = ("--fine-tune", "4", "--steps", "2", "--learning-rate", "1e-3", "--distill-hidden", "0.1")
    data = run("prune", "--remove", "2", *tuning, out="tuned")
    assert len(data["removed"]) == 2
    model = load(folder / "tuned")
    assert [entry["action"] for entry in model.history] == ["prune", "distill"] * 2
    assert model.history[-1]["steps"] == 4
    assert data["metrics"]["loss"] < data["metrics_before"]["loss"]  # from random weights anything is learned


def test_kept_heads_are_rescaled(run, folder):
    run("prune", "--remove", "decoder/1/0", "--rescale", out="rescaled")
    assert [entry["action"] for entry in load(folder / "rescaled").history] == ["fold_gates", "prune"]


CONFIG = """
from ml_collections import ConfigDict

def get_config(arg=""):
    return ConfigDict({
        "model": {"kind": "directory", "path": "FOLDER/model"},
        "data": {"kind": "language", "path": "FOLDER/text.txt", "length": 32},
        "batch_size": 8, "steps": 4, "checkpoint_every": 2, "keep_checkpoints": 2, "tensorboard": False,
        "optimizer": {"kind": "adamw", "schedule": {"kind": "constant_rate", "peak": 0.01}},
    })
"""


def test_the_report_holds_what_the_commands_say(run, folder, capsys):
    """On a trained model, with another task and the run's checkpoints; the page needs nothing from elsewhere."""
    (folder / "train.py").write_text(CONFIG.replace("FOLDER", str(folder)))
    assert main(["train", "--config", str(folder / "train.py"), "--workdir", str(folder / "trained")]) == 0
    capsys.readouterr()
    measured = ("--orders", "importance,random", "--seeds", "1", "--scored", "8", "--percentages", "50,100")
    more = ("--second", f"all:{folder / 'text.txt'}", "--run", str(folder / "trained"))
    data = run("report", *measured, *more, "--out", str(folder / "heads.html"))
    assert data["examples"] == 16
    assert len(data["best_heads"]) == 2
    ablated = run("ablate", "--mode", "each,all-but-one")
    scale = ablated["baseline"]["perplexity"]
    for mode, found in data["effects"].items():
        assert_numbers_close(
            found["effect"], ablated["modes"][mode]["effect"], sums=PERPLEXITY_SUMS, scale=scale, name=mode
        )
    pruned = run("prune", "--remove", "50%", "--by", "random", out="half-random")
    half, none = data["curves"]["random"]
    assert (half["removed"], none["removed"]) == (2, 4)
    assert half["value"] == close_to(pruned["metrics"]["perplexity"], sums=PERPLEXITY_SUMS)
    assert data["transfer"]["spearman"]["low"] <= data["transfer"]["spearman"]["value"]
    assert [snapshot["step"] for snapshot in data["snapshots"]] == [2, 4]
    assert data["snapshots"][0]["baseline"] != data["snapshots"][1]["baseline"]
    page = (folder / "heads.html").read_text()
    assert "<script" not in page
    assert not re.search(r'(src|href)="http', page)
    for title in ("What the scores say", "One head less", "Removing heads", "Other data", "During training",
                  "What heads look at", "Attention patterns"):  # fmt: skip
        assert title in page


def test_convert_at_full_rank_keeps_the_metrics(run, folder):
    data = run("convert", "--to", "collaborative:shared_dim=16", out="shared")
    assert {"error_per_layer", "parameters", "metrics"} <= data.keys()
    assert [(error["stack"], error["layer"]) for error in data["error_per_layer"]] == [("decoder", 0), ("decoder", 1)]
    assert all(error["relative_error"] < tolerance(tiny.SUMS) for error in data["error_per_layer"])
    assert data["metrics"]["loss"] == close_to(data["metrics_before"]["loss"], sums=tiny.SUMS)
    assert load(folder / "shared").num_parameters == data["parameters"]


def test_convert_some_layers_with_calibration(run, folder):
    data = run("convert", "--to", "collaborative:shared_dim=8", "--layers", "1", "--calibrate", "2", out="calibrated")
    assert [error["layer"] for error in data["error_per_layer"]] == [1]
    assert isinstance(load(folder / "calibrated").config.attentions()["decoder"][0], MultiHead)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("prune", "model", "bad", "--remove", "decoder/9/0"), "decoder/9/0"),
        (("prune", "model", "bad", "--remove", "40%"), "--task: needed to order heads by importance"),
        (("prune", "model", "bad", "--remove", "140%", "--by", "random"), "asks for 5 heads, the model has 4"),
        (("prune", "model", "bad", "--remove", "some", "--by", "random"), "'some' is no number of heads"),
        (("prune", "model", "bad", "--remove", "1", "--by", "importanc"), "did you mean 'importance'?"),
        (
            ("prune", "model", "bad", "--remove", "1", "--by", "random", "--steps", "0"),
            "--steps: must be an integer of at least 1",
        ),
        (
            ("prune", "model", "bad", "--remove", "1", "--by", "random", "--stacks", "encoder"),
            "--stacks: the model has no",
        ),
        (("prune", "model", "bad", "--remove", "some"), "'some' is no number of heads"),
        (("prune", "model", "bad"), "one of the arguments --remove --max-drop --speed-up is required"),
        (("prune", "model", "bad", "--max-drop", "-1"), "--max-drop: expected a number such as 0.01, or 5%"),
        (("prune", "model", "bad", "--max-drop", "1", "--by", "random"), "--task: needed to measure --max-drop on"),
        (("prune", "model", "bad", "--speed-up", "9", "--by", "subset", "--task", "text.txt"), "--by: subset chooses"),
        (
            ("prune", "model", "bad", "--speed-up", "0.5", "--task", "text.txt"),
            "--speed-up: must be at least 1, got 0.5",
        ),
        (("prune", "model", "bad", "--remove", "decoder/0/0", "--fine-tune", "3"), "--task: needed to fine-tune on"),
        (("score", "model", "--task", "text.txt", "--buckets", "x"), "--buckets: expected numbers such as 16,32,64"),
        (
            ("score", "model", "--task", "text.txt", "--buckets", "0,4"),
            "--buckets[0]: must be an integer of at least 1",
        ),
        (("ablate", "model", "--task", "text.txt", "--mode", "one"), "--mode: unknown mode 'one'"),
        (("ablate", "model", "--task", "text.txt", "--budget", "much"), "--budget: expected a size"),
        (("score", "model", "--task", "no_such_task"), "no_such_task"),
        (("score", "model", "--task", "text.txt", "--select", "test"), "--select: task: unknown task or file 'test'"),
        (("score", "model", "--task", "text.txt", "--select", "labels.tsv"), "--select: task: it needs another model"),
        (("score", "model", "--task", "all:text.txt", "--select", "train"), "--select: text.txt has no training"),
        (("score", "model", "--task", "text.txt", "--selected", "-1"), "--selected: must not be negative, got -1"),
        (("prune", "model", "bad", "--remove", "decoder/0/0", "--select", "train"), "--select: needs a task"),
        (
            ("report", "model", "--task", "text.txt", "--orders", "importance+sorted"),
            "'sorted' is neither normalize nor",
        ),
        (("report", "model", "--task", "text.txt", "--percentages", "50,20"), "percentages: must rise within 1..100"),
        (("score", "model", "--task", "empty.txt"), "empty.txt: empty, there is no text in it"),
        (("ablate", "model", "--task", "labels.tsv"), "task: it needs another model output: a classification into 2"),
        (("score", "nowhere", "--task", "text.txt"), "nowhere: not a model directory"),
        (("convert", "model", "bad", "--to", "colaborative:shared_dim=8"), "did you mean 'collaborative'?"),
        (("convert", "model", "bad", "--to", "collaborative:shared_dim=17"), "17"),
        (("convert", "model", "bad", "--to", "gated", "--calibrate", "3"), "--task: needed to calibrate on"),
        (
            ("convert", "model", "bad", "--to", "gated", "--layers", "7"),
            "layers: there is no layer 7; they are numbered",
        ),
        (("convert", "model", "bad", "--to", "gated", "--calibrate", "-2"), "--calibrate: must not be negative"),
        (
            ("sweep", "model", "bad", "--to", "gated", "--task", "text.txt", "--calibrate", "-2"),
            "--calibrate: must not be negative",
        ),
        (("sharing", "model", "--budget", "-1"), "--budget: must not be negative"),
        (
            (
                "prune",
                "model",
                "bad",
                "--remove",
                "1",
                "--task",
                "text.txt",
                "--fine-tune",
                "3",
                "--learning-rate",
                "0",
            ),
            "--learning-rate: must be positive, got 0",
        ),
        (
            ("prune", "model", "bad", "--remove", "1", "--task", "text.txt", "--fine-tune", "3", "--distill", "-1"),
            "--distill: must not be negative, got -1",
        ),
        (("report", "model", "--task", "text.txt", "--orders", "importanc"), "orders: unknown order 'importanc'; did"),
        (("report", "model", "--task", "text.txt", "--run", "nowhere"), "nowhere: holds no training run"),
        (("convert", "model", "bad", "--to", "gated", "--layers", "x"), "--layers: expected numbers"),
    ],
)
def test_bad_requests_are_one_line_and_leave_nothing(arguments, message, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert main(list(arguments)) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("headjax: error: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert not (folder / "bad").exists()


def test_sizes():
    assert size_in_bytes("1.5GB") == 1_500_000_000
    assert size_in_bytes("512kb") == 512_000
    assert size_in_bytes("77") == 77
    with pytest.raises(ValueError, match="must be positive"):
        size_in_bytes("0MB")
