"""`headjax prune`: orders, goals, heads of some stacks alone, and no work whose result nobody reads."""

from __future__ import annotations

import json

import pytest

from headjax.cli import main
from headjax.heads import pruning
from headjax.models.encoder_decoder import Translation
from headjax.models.model import load
from headjax.models.sublayers import Dense
from headjax.tokenizers.learned import byte_tokenizer
from tests import tiny
from tests.closeness import close_to, tolerance
from tests.commands.language_folder import write_language_folder
from tests.hub.directories import assert_equal

pytestmark = pytest.mark.whole

PERPLEXITY_SUMS = 16 * tiny.SUMS
"""A rounding of the loss, near 4, is four times as large a share of the perplexity."""
HEADS = [f"decoder/{layer}/{head}" for layer in range(2) for head in range(2)]


def test_prune_removes_what_scores_least(run, folder):
    """Heads of different layers are compared by their share of their layer's importance."""
    importance = run("score", "--normalize")["scores"]["importance"]
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
        ("--remove", "3", "--by", "fisher", "--steps", "2"),
        ("--remove", "1", "--by", "ablation"),
        ("--remove", "2", "--by", "importance_raw"),
        ("--remove", "2", "--by", "hies", "--normalize", "--stacks", "decoder"),
    ],
)
def test_orders(run, arguments):
    assert len(run("prune", *arguments, out=f"ordered-{arguments[3]}")["removed"]) == int(arguments[1])


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


def test_without_metrics_the_model_goes_from_file_to_file(run, folder):
    """By a score that needs no labels, with the same arrays, bit by bit, as from memory."""
    data = run("prune", "--remove", "1", "--by", "output_norm", "--no-metrics", out="unmeasured")
    assert (data["metrics"], data["metrics_before"], data["evaluation"]) == ({}, {}, None)
    assert data["selection"]["examples"] > 0
    expected = pruning.prune(load(folder / "model"), data["removed"])
    found = load(folder / "unmeasured")
    assert found.config == expected.config
    assert_equal(found.params, expected.params)
    scores = run("score")["scores"]["output_norm"]
    assert data["removed"] == [min(scores, key=scores.get)]


def test_kept_heads_are_rescaled(run, folder):
    run("prune", "--remove", "decoder/1/0", "--rescale", out="rescaled")
    assert [entry["action"] for entry in load(folder / "rescaled").history] == ["fold_gates", "prune"]


@pytest.fixture(scope="module")
def stacks(tmp_path_factory):
    """A language model and a model of three head stacks, with a text and sentence pairs."""
    folder = tmp_path_factory.mktemp("prune")
    write_language_folder(folder, max_length=32)
    recipe = Translation(
        vocab_size=257, width=tiny.WIDTH, num_layers=2, attention=tiny.multi_head(4), feed_forward=Dense(24)
    )
    tiny.model(recipe.build()).replace(tokenizer=byte_tokenizer()).save(folder / "translation")
    for language, word in {"en": "number", "de": "Zahl"}.items():
        (folder / f"pairs.{language}").write_text("".join(f"{word} {i}\n" for i in range(24)))
    return folder


def prune(stacks, model, out, task, *words):
    arguments = [str(stacks / model), str(stacks / out), "--task", task, "--limit", "8", "--batch-size", "8"]
    assert main(["prune", *arguments, *words, "--json", str(stacks / "result.json")]) == 0
    return json.loads((stacks / "result.json").read_text())


@pytest.mark.parametrize("words", [("--steps", "2"), ("--by", "fisher_blocks"), ("--by", "random")])
def test_a_count_is_spent_on_the_chosen_stacks_alone(stacks, words):
    task = f"translation:{stacks / 'pairs'}:en-de"
    data = prune(stacks, "translation", f"out{words[-1]}", task, "--remove", "7", "--stacks", "encoder", *words)
    assert len(data["removed"]) == 7
    assert all(head.startswith("encoder/") for head in data["removed"])


@pytest.mark.parametrize("share, warned", [("50%", False), ("75%", True)])
def test_fisher_blocks_warns_past_half_of_the_heads(stacks, share, warned, capsys):
    arguments = [str(stacks / "model"), str(stacks / f"blocks{share}"), "--task", str(stacks / "text.txt")]
    options = ["--limit", "8", "--batch-size", "8", "--by", "fisher_blocks", "--remove", share]
    assert main(["prune", *arguments, *options]) == 0
    assert ("fisher_blocks estimates small removals" in capsys.readouterr().out) is warned
