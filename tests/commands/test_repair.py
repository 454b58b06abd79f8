"""`headjax prune --reconstruct`: the model, its report, and requests that have no meaning."""

from __future__ import annotations

import numpy as np
import pytest

from headjax.cli import main
from headjax.commands import surgery
from headjax.models.model import load

pytestmark = pytest.mark.whole


def test_kept_heads_are_solved_anew_and_the_result_says_how(run, folder):
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
    assert model.config.attentions().keys() == {"decoder"}
    assert model.num_parameters == data["parameters"] < data["parameters_before"]
    measured = run("prune", "--remove", ",".join(data["removed"]), out="masked")["metrics"]["perplexity"]
    assert abs(measured / data["metrics"]["perplexity"] - 1.0) > 1e-4


def test_feed_forwards_are_solved_too_and_few_tokens_are_told(folder, capsys):
    words = ["prune", str(folder / "model"), str(folder / "both"), "--task", str(folder / "text.txt"), "--limit", "8"]
    words += ["--remove", "decoder/0/1", "--reconstruct", "--feed-forward", "--calibrate", "2", "--length", "8"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "decoder/0/feed_forward" in printed
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


def refused(folder, capsys, model, *words):
    """The last line of a command that reconstructs and fails."""
    task = ["--task", str(folder / "text.txt"), "--limit", "8", "--batch-size", "8", "--calibrate", "8"]
    assert main(["prune", str(folder / model), str(folder / "never"), *task, "--reconstruct", *words]) == 2
    assert not (folder / "never").exists()
    return capsys.readouterr().err.splitlines()[-1]


def test_calibration_examples_of_padding_alone_are_one_line(folder, capsys, monkeypatch):
    sampled = surgery.calibration_batches

    def padding(examples, options):
        return [batch | {"attention_mask": np.zeros_like(batch["input_ids"])} for batch in sampled(examples, options)]

    monkeypatch.setattr(surgery, "calibration_batches", padding)
    line = refused(folder, capsys, "model", "--remove", "decoder/0/1")
    assert line.endswith("calibration: the examples hold padding alone")
