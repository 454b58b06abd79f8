"""`headjax score`, `ablate`, `prune`, `compare`, `sharing` and `report` on one model: their numbers agree."""

import dataclasses
import re

import numpy as np
import pytest

from headjax.cli import main
from headjax.commands import repair
from headjax.heads import pruning
from headjax.heads.head_id import HeadId
from headjax.heads.scores import normalize_layers
from headjax.models.model import load
from headjax.tokenizers.learned import byte_tokenizer
from tests import tiny
from tests.closeness import assert_numbers_close, assert_trees_equal, close_to, tolerance

PERPLEXITY_SUMS = 16 * tiny.SUMS
"""A rounding of the loss, near 4, is four times as large a share of the perplexity."""
HEADS = [f"decoder/{layer}/{head}" for layer in range(2) for head in range(2)]
TASK = "--task text.txt --limit 16 --batch-size 8"


def actions(path):
    return [entry["action"] for entry in load(path).history]


def test_prune_removes_what_scores_least(run, tmp_path):
    """Heads of different layers are compared by their share of their layer's importance."""
    scores = run(f"score model {TASK}").data["scores"]["importance"]
    importance = normalize_layers({HeadId.parse(head): value for head, value in scores.items()})
    data = run(f"prune model OUT/half {TASK} --remove 50%").data
    assert data["removed"] == [str(head) for head in sorted(importance, key=importance.get)[:2]]
    assert sorted(data["kept"] + data["removed"]) == HEADS
    model = load(tmp_path / "half")
    assert model.num_parameters == data["parameters"] < data["parameters_before"]
    assert actions(tmp_path / "half") == ["prune"]
    assert model.tokenizer is not None


def test_as_many_heads_as_a_drop_allows(run):
    """By bisection: the metric stays within the drop, and all heads go where nothing is too dear.

    The drop is judged on the selection examples, which are here those that the metrics are taken on.
    """
    data = run(f"prune model OUT/dear {TASK} --max-drop 0% --by random --select validation").data
    assert data["metrics"]["perplexity"] <= data["metrics_before"]["perplexity"] * (1 + tolerance(PERPLEXITY_SUMS))
    assert data["gated_metric"] == close_to(data["metrics"]["perplexity"], sums=PERPLEXITY_SUMS)
    assert sorted(run(f"prune model OUT/cheap {TASK} --max-drop 1e12 --by random").data["removed"]) == HEADS


def test_without_metrics_the_model_goes_from_file_to_file(run, folder, tmp_path):
    """With the same arrays, bit by bit, as from memory."""
    data = run(f"prune model OUT/unmeasured {TASK} --remove 1 --by fisher --no-metrics").data
    assert (data["metrics"], data["metrics_before"], data["evaluation"]) == ({}, {}, None)
    assert data["selection"]["examples"] > 0
    expected = pruning.prune(load(folder / "model"), data["removed"])
    found = load(tmp_path / "unmeasured")
    assert found.config == expected.config
    assert_trees_equal(found.params, expected.params)
    scores = run(f"score model {TASK}").data["scores"]["fisher"]
    assert data["removed"] == [min(scores, key=scores.get)]


def test_kept_heads_are_solved_anew_and_the_result_says_how(run, tmp_path):
    data = run(f"prune model OUT/repaired {TASK} --by reconstruction --reconstruct --calibrate 12 --remove 2").data
    assert len(data["removed"]) == 2
    assert data["selection"]["examples"] == data["calibration"]["examples"] == 12
    assert data["calibration"]["tokens"] == 12 * 32
    assert [layer["name"] for layer in data["layers"]][-1] == "decoder/1"
    assert all(layer["held_out"] >= 0.0 for layer in data["layers"])
    assert data["agreement"]["measure"] == "kl"
    assert data["agreement"]["after"] < data["agreement"]["before"]
    assert data["warnings"] == []
    assert actions(tmp_path / "repaired") == ["reconstruct", "prune"]
    assert load(tmp_path / "repaired").num_parameters == data["parameters"] < data["parameters_before"]
    masked = run(f"prune model OUT/masked {TASK} --remove {','.join(data['removed'])}").data["metrics"]["perplexity"]
    assert abs(masked / data["metrics"]["perplexity"] - 1.0) > 1e-4


def test_feed_forwards_are_solved_too_and_few_tokens_are_told(run):
    few = "--reconstruct --feed-forward --calibrate 2 --length 8"
    told = run(f"prune model OUT/both --task text.txt --limit 8 --remove decoder/0/1 {few}").told
    assert "Calibration: 2 examples" in told
    assert "16 tokens for 17 unknowns (decoder/0/feed_forward)" in told


def test_calibration_on_texts_of_another_length_is_told():
    short = [{"input_ids": np.ones((2, 8)), "attention_mask": np.array([[1] * 4 + [0] * 4, [1] * 6 + [0] * 2])}]
    assert repair._mean_tokens(short) == 5.0
    assert repair._mean_tokens([{"input_ids": np.ones((3, 8))}]) == 8.0
    assert repair._mean_tokens([{"pixel_values": np.ones((3, 8))}]) == 0.0
    assert repair._hint(5.0, 0.0) == repair._hint(5.0, 7.0) == repair._hint(7.0, 5.0) == []
    (line,) = repair._hint(5.0, 8.0)
    assert line.startswith("calibration examples have 5 tokens on average and evaluation examples 8;")
    assert repair._hint(20.0, 8.0)


def test_calibration_examples_of_padding_alone_are_one_line(folder, tmp_path, capsys, monkeypatch):
    sampled = repair.calibration_batches

    def padding(examples, options):
        return [batch | {"attention_mask": np.zeros_like(batch["input_ids"])} for batch in sampled(examples, options)]

    monkeypatch.setattr(repair, "calibration_batches", padding)
    words = ["prune", str(folder / "model"), str(tmp_path / "never"), "--remove", "decoder/0/1", "--reconstruct"]
    assert main([*words, "--task", str(folder / "text.txt"), "--batch-size", "8", "--calibrate", "8"]) == 2
    assert not (tmp_path / "never").exists()
    assert capsys.readouterr().err.splitlines()[-1].startswith("headjax: error: calibration: ")


def test_fine_tuning_between_steps(run, tmp_path):
    words = "--remove 2 --steps 2 --fine-tune 4 --learning-rate 1e-3 --distill 0.9 --distill-hidden 0.1"
    data = run(f"prune model OUT/tuned {TASK} {words}").data
    assert len(data["removed"]) == 2
    assert actions(tmp_path / "tuned") == ["prune", "distill"] * 2
    assert load(tmp_path / "tuned").history[-1]["steps"] == 4
    assert data["metrics"]["loss"] < data["metrics_before"]["loss"]  # from random weights anything is learned


@pytest.mark.parametrize("words", ["--steps 2", "--by random"])
def test_a_count_is_spent_on_the_chosen_stacks_alone(run, words):
    task = "--task translation:pairs:en-de --limit 8 --batch-size 8"
    removed = run(f"prune translation OUT/fewer {task} {words} --remove 7 --stacks encoder").data["removed"]
    assert len(removed) == 7
    assert all(head.startswith("encoder/") for head in removed)


def test_a_model_beside_itself_and_beside_itself_with_fewer_heads(run):
    run("prune model OUT/fewer --remove decoder/0/0")
    task = "--task text.txt --limit 8 --batch-size 4 --repeats 2"
    data = run(f"compare model OUT/fewer {task}").data
    assert data["heads"] == [4, 3]
    assert data["parameters"][0] > data["parameters"][1]
    assert data["bytes"] == [4 * count for count in data["parameters"]]
    assert data["agreement"] > 0
    assert data["agreement_measure"].startswith("mean KL(A, B)")
    assert data["test"] == "paired t-test on losses"
    assert 0 <= data["significance"]["p_value"] <= 1
    same = run(f"compare model model {task}").data
    assert same["agreement"] == pytest.approx(0.0, abs=1e-6)
    assert same["metrics"][0] == same["metrics"][1] == data["metrics"][0]


def test_sharing_reports_ranks_budgets_and_both_parts_of_the_logits(run, tmp_path):
    data = run(f"sharing model {TASK} --budget 24 --plots OUT/plots").data
    assert list(data["ranks"]) == ["decoder/0", "decoder/1"]
    product = data["ranks"]["decoder/0"]["product"]
    assert 1 <= product["90%"] <= product["95%"] <= product["99%"] <= 16
    assert sum(data["budget"].values()) == 24
    # Fresh biases are zero: the context is everything, and content alone attends to all keys alike.
    metrics = {name: found["loss"] for name, found in data["metrics"].items()}
    assert metrics["context_only"] == close_to(metrics["all"], sums=tiny.SUMS)
    assert metrics["content_only"] != pytest.approx(metrics["all"], rel=1e-4)
    assert all((tmp_path / "plots" / name).is_file() for name in ("captured.png", "captured_by_head.png"))


def test_sharing_says_which_part_of_the_logits_it_could_not_measure(run, tmp_path):
    config = tiny.decoder_config(tiny.layer(tiny.multi_head(2, projection_bias=False)))
    config = dataclasses.replace(config, embeddings=dataclasses.replace(config.embeddings, vocab_size=257))
    tiny.model(config).replace(tokenizer=byte_tokenizer()).save(tmp_path / "no-biases")
    data, told = run("sharing OUT/no-biases --task text.txt --limit 8")
    assert "Not measured: context only and content only" in told
    assert list(data["metrics"]) == ["all"]
    assert list(data["left_out"]) == ["context_only", "content_only"]
    assert "per-head queries and keys with biases" in data["left_out"]["content_only"]


def test_the_report_holds_what_the_commands_say(run, tmp_path):
    measured = "--orders importance,random --seeds 1 --selected 8 --percentages 50,100"
    data = run(f"report model {TASK} {measured} --out OUT/heads.html").data
    assert data["examples"] == 16
    assert len(data["best_heads"]) == 2
    ablated = run(f"ablate model {TASK} --mode each,all-but-one").data
    scale = ablated["baseline"]["perplexity"]
    for mode, found in data["effects"].items():
        effects = ablated["modes"][mode]["effect"]
        assert_numbers_close(found["effect"], effects, sums=PERPLEXITY_SUMS, scale=scale, name=mode)
    pruned = run(f"prune model OUT/half {TASK} --remove 50% --by random").data
    half, none = data["curves"]["random"]
    assert (half["removed"], none["removed"]) == (2, 4)
    assert half["value"] == close_to(pruned["metrics"]["perplexity"], sums=PERPLEXITY_SUMS)
    page = (tmp_path / "heads.html").read_text()
    assert page.count("<script>") == 1
    assert not re.search(r'(src|href)="http', page)
    assert "What each head attends to" in page
