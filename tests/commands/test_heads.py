"""`headjax score`, `ablate`, `prune`, `compare`, `sharing` and `report` on one model: their numbers agree."""

import dataclasses
import json
import re

import numpy as np
import pytest

from headjax.cli import main
from headjax.commands import surgery
from headjax.commands.ablate import size_in_bytes
from headjax.heads import pruning
from headjax.models.encoder_decoder import Translation
from headjax.models.model import load
from headjax.models.sublayers import Dense
from headjax.tokenizers.learned import byte_tokenizer
from tests import tiny
from tests.closeness import assert_numbers_close, close_to, tolerance
from tests.hub.directories import assert_equal

PERPLEXITY_SUMS = 16 * tiny.SUMS
"""A rounding of the loss, near 4, is four times as large a share of the perplexity."""
HEADS = [f"decoder/{layer}/{head}" for layer in range(2) for head in range(2)]


def test_sizes_of_memory():
    assert size_in_bytes("1.5GB") == 1_500_000_000
    assert size_in_bytes("512kb") == 512_000
    assert size_in_bytes("77") == 77
    with pytest.raises(ValueError, match="must be positive"):
        size_in_bytes("0MB")


def test_prune_removes_what_scores_least(run, folder):
    """Heads of different layers are compared by their share of their layer's importance."""
    importance = run("score", "--normalize")["scores"]["importance"]
    data = run("prune", "--remove", "50%", out="half")
    assert data["removed"] == sorted(importance, key=importance.get)[:2]
    assert sorted(data["kept"] + data["removed"]) == HEADS
    model = load(folder / "half")
    assert model.num_parameters == data["parameters"] < data["parameters_before"]
    assert model.history[-1]["action"] == "prune"
    assert model.tokenizer is not None


@pytest.mark.parametrize(
    "words",
    [
        "--remove 3 --by fisher --steps 2",
        "--remove 1 --by ablation",
        "--remove 2 --by importance_raw",
        "--remove 2 --by hies --normalize --stacks decoder",
    ],
)
def test_orders(run, words):
    _, count, _, order, *_ = words.split()
    assert len(run("prune", *words.split(), out=f"ordered-{order}")["removed"]) == int(count)


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


def test_kept_heads_are_rescaled_or_solved_anew_and_the_result_says_how(run, folder):
    run("prune", "--remove", "decoder/1/0", "--rescale", out="rescaled")
    assert [entry["action"] for entry in load(folder / "rescaled").history] == ["fold_gates", "prune"]
    words = ("--by", "reconstruction", "--reconstruct", "--calibrate", "12", "--remove", "2")
    data = run("prune", *words, out="repaired")
    assert len(data["removed"]) == 2
    assert data["selection"]["examples"] == data["calibration"]["examples"] == 12
    assert data["calibration"]["tokens"] == 12 * 32
    assert [layer["name"] for layer in data["layers"]][-1] == "decoder/1"
    assert all(layer["held_out"] >= 0.0 for layer in data["layers"])
    assert data["agreement"]["measure"] == "kl"
    assert data["agreement"]["after"] < data["agreement"]["before"]
    assert data["warnings"] == []
    model = load(folder / "repaired")
    assert [entry["action"] for entry in model.history[-2:]] == ["reconstruct", "prune"]
    assert model.num_parameters == data["parameters"] < data["parameters_before"]
    masked = run("prune", "--remove", ",".join(data["removed"]), out="masked")["metrics"]["perplexity"]
    assert abs(masked / data["metrics"]["perplexity"] - 1.0) > 1e-4


def test_feed_forwards_are_solved_too_and_few_tokens_are_told(folder, capsys):
    words = ["prune", str(folder / "model"), str(folder / "both"), "--task", str(folder / "text.txt"), "--limit", "8"]
    words += ["--remove", "decoder/0/1", "--reconstruct", "--feed-forward", "--calibrate", "2", "--length", "8"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "Calibration: 2 examples" in printed
    assert "16 tokens for 17 unknowns (decoder/0/feed_forward)" in printed


def test_calibration_on_texts_of_another_length_is_told():
    short = [{"input_ids": np.ones((2, 8)), "attention_mask": np.array([[1] * 4 + [0] * 4, [1] * 6 + [0] * 2])}]
    assert surgery._mean_tokens(short) == 5.0
    assert surgery._mean_tokens([{"input_ids": np.ones((3, 8))}]) == 8.0
    assert surgery._mean_tokens([{"pixel_values": np.ones((3, 8))}]) == 0.0
    assert surgery._hint(5.0, 0.0) == surgery._hint(5.0, 7.0) == surgery._hint(7.0, 5.0) == []
    (line,) = surgery._hint(5.0, 8.0)
    assert line.startswith("calibration examples have 5 tokens on average and evaluation examples 8;")
    assert surgery._hint(20.0, 8.0)


def test_calibration_examples_of_padding_alone_are_one_line(folder, capsys, monkeypatch):
    sampled = surgery.calibration_batches

    def padding(examples, options):
        return [batch | {"attention_mask": np.zeros_like(batch["input_ids"])} for batch in sampled(examples, options)]

    monkeypatch.setattr(surgery, "calibration_batches", padding)
    words = ["prune", str(folder / "model"), str(folder / "never"), "--remove", "decoder/0/1", "--reconstruct"]
    assert main([*words, "--task", str(folder / "text.txt"), "--batch-size", "8", "--calibrate", "8"]) == 2
    assert not (folder / "never").exists()
    assert capsys.readouterr().err.splitlines()[-1].startswith("headjax: error: calibration: ")


def test_fine_tuning_between_steps(run, folder):
    words = "--remove 2 --steps 2 --fine-tune 4 --learning-rate 1e-3 --distill 0.9:0.5 --distill-hidden 0.1"
    more = "--distill-attention 1:0.1 --temperature 2:1"
    data = run("prune", *words.split(), *more.split(), out="tuned")
    assert len(data["removed"]) == 2
    model = load(folder / "tuned")
    assert [entry["action"] for entry in model.history] == ["prune", "distill"] * 2
    assert model.history[-1]["steps"] == 4
    assert data["metrics"]["loss"] < data["metrics_before"]["loss"]  # from random weights anything is learned


@pytest.fixture(scope="module")
def translation(folder):
    """A model of three head stacks, and its task of sentence pairs."""
    recipe = Translation(
        vocab_size=257, width=tiny.WIDTH, num_layers=2, attention=tiny.multi_head(4), feed_forward=Dense(24)
    )
    tiny.model(recipe.build()).replace(tokenizer=byte_tokenizer()).save(folder / "translation")
    for language, word in {"en": "number", "de": "Zahl"}.items():
        (folder / f"pairs.{language}").write_text("".join(f"{word} {i}\n" for i in range(24)))
    return f"translation:{folder / 'pairs'}:en-de"


@pytest.mark.parametrize("words", [("--steps", "2"), ("--by", "fisher_blocks"), ("--by", "random")])
def test_a_count_is_spent_on_the_chosen_stacks_alone(folder, translation, words, capsys):
    arguments = [str(folder / "translation"), str(folder / f"out{words[-1]}"), "--task", translation, *words]
    options = ["--remove", "7", "--stacks", "encoder", "--limit", "8", "--batch-size", "8", "--json", "-"]
    assert main(["prune", *arguments, *options]) == 0
    removed = json.loads(capsys.readouterr().out)["removed"]
    assert len(removed) == 7
    assert all(head.startswith("encoder/") for head in removed)


@pytest.mark.parametrize("share, warned", [("50%", False), ("75%", True)])
def test_fisher_blocks_warns_past_half_of_the_heads(folder, share, warned, capsys):
    arguments = [str(folder / "model"), str(folder / f"blocks{share}"), "--task", str(folder / "text.txt")]
    options = ["--limit", "8", "--batch-size", "8", "--by", "fisher_blocks", "--remove", share]
    assert main(["prune", *arguments, *options]) == 0
    assert ("fisher_blocks estimates small removals" in capsys.readouterr().out) is warned


def test_a_model_beside_itself_and_beside_itself_with_fewer_heads(folder, capsys):
    model, pruned = str(folder / "model"), str(folder / "fewer")
    assert main(["prune", model, pruned, "--remove", "decoder/0/0"]) == 0
    words = ["--task", str(folder / "text.txt"), "--limit", "8", "--batch-size", "4", "--repeats", "2", "--json", "-"]
    capsys.readouterr()
    assert main(["compare", model, pruned, *words]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["heads"] == [4, 3]
    assert data["parameters"][0] > data["parameters"][1]
    assert data["bytes"] == [4 * count for count in data["parameters"]]
    assert data["agreement"] > 0
    assert data["agreement_measure"].startswith("mean KL(A, B)")
    assert data["test"] == "paired t-test on losses"
    assert 0 <= data["significance"]["p_value"] <= 1
    assert main(["compare", model, model, *words]) == 0
    same = json.loads(capsys.readouterr().out)
    assert same["agreement"] == pytest.approx(0.0, abs=1e-6)
    assert same["metrics"][0] == same["metrics"][1] == data["metrics"][0]


def test_sharing_reports_ranks_budgets_and_both_parts_of_the_logits(run, folder):
    data = run("sharing", "--budget", "24", "--plots", str(folder / "plots"))
    assert list(data["ranks"]) == ["decoder/0", "decoder/1"]
    product = data["ranks"]["decoder/0"]["product"]
    assert 1 <= product["90%"] <= product["95%"] <= product["99%"] <= 16
    assert sum(data["budget"].values()) == 24
    # Fresh biases are zero: the context is everything, and content alone attends to all keys alike.
    metrics = {name: found["loss"] for name, found in data["metrics"].items()}
    assert metrics["context_only"] == close_to(metrics["all"], sums=tiny.SUMS)
    assert metrics["content_only"] != pytest.approx(metrics["all"], rel=1e-4)
    assert all((folder / "plots" / name).is_file() for name in ("captured.png", "captured_by_head.png"))


def test_sharing_says_which_part_of_the_logits_it_could_not_measure(folder, capsys):
    config = tiny.decoder_config(tiny.layer(tiny.multi_head(2, projection_bias=False)))
    config = dataclasses.replace(config, embeddings=dataclasses.replace(config.embeddings, vocab_size=257))
    tiny.model(config).replace(tokenizer=byte_tokenizer()).save(folder / "no-biases")
    words = ["--task", str(folder / "text.txt"), "--limit", "8", "--json", str(folder / "result.json")]
    assert main(["sharing", str(folder / "no-biases"), *words]) == 0
    assert "Not measured: context only and content only" in " ".join(capsys.readouterr().out.split())
    data = json.loads((folder / "result.json").read_text())
    assert list(data["metrics"]) == ["all"]
    assert list(data["left_out"]) == ["context_only", "content_only"]
    assert "per-head queries and keys with biases" in data["left_out"]["content_only"]


TRAINING = """
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
    (folder / "train.py").write_text(TRAINING.replace("FOLDER", str(folder)))
    assert main(["train", "--config", str(folder / "train.py"), "--workdir", str(folder / "trained")]) == 0
    capsys.readouterr()
    measured = ("--orders", "importance,random", "--seeds", "1", "--selected", "8", "--percentages", "50,100")
    more = ("--second", f"all:{folder / 'text.txt'}", "--run", str(folder / "trained"))
    data = run("report", *measured, *more, "--out", str(folder / "heads.html"))
    assert not (folder / "heads.html.part").exists()
    assert data["examples"] == 16
    assert len(data["best_heads"]) == 2
    ablated = run("ablate", "--mode", "each,all-but-one")
    scale = ablated["baseline"]["perplexity"]
    for mode, found in data["effects"].items():
        effects = ablated["modes"][mode]["effect"]
        assert_numbers_close(found["effect"], effects, sums=PERPLEXITY_SUMS, scale=scale, name=mode)
    pruned = run("prune", "--remove", "50%", "--by", "random", out="half-random")
    half, none = data["curves"]["random"]
    assert (half["removed"], none["removed"]) == (2, 4)
    assert half["value"] == close_to(pruned["metrics"]["perplexity"], sums=PERPLEXITY_SUMS)
    assert data["transfer"]["spearman"]["low"] <= data["transfer"]["spearman"]["value"]
    assert [snapshot["step"] for snapshot in data["snapshots"]] == [2, 4]
    early, late = data["snapshots"]
    assert early["baseline"] != late["baseline"]
    assert -1 <= late["agreement"] <= early["agreement"] <= 1  # with the model that training began from
    page = (folder / "heads.html").read_text()
    assert page.count("<script>") == 1
    assert not re.search(r'(src|href)="http', page)
    for title in ("Other data", "During training", "What each head attends to"):
        assert title in page
