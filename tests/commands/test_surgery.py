"""Fine-tuning of changed models, with the original as teacher."""

from __future__ import annotations

import pytest

from headjax.models.model import load

pytestmark = pytest.mark.whole


def test_fine_tuning_between_steps(run, folder):
    tuning = (
        "--fine-tune",
        "4",
        "--steps",
        "2",
        "--learning-rate",
        "1e-3",
        "--distill-hidden",
        "0.1",
        "--distill",
        "0.9:0.5",
        "--temperature",
        "2:1",
        "--distill-attention",
        "1:0.1",
    )
    data = run("prune", "--remove", "2", *tuning, out="tuned")
    assert len(data["removed"]) == 2
    model = load(folder / "tuned")
    assert [entry["action"] for entry in model.history] == ["prune", "distill"] * 2
    assert model.history[-1]["steps"] == 4
    assert data["metrics"]["loss"] < data["metrics_before"]["loss"]  # from random weights anything is learned


def test_converted_models_learn_from_the_original(run, folder):
    words = ("--to", "grouped:kv_heads=1", "--fine-tune", "3", "--learning-rate", "1e-3", "--labels", "0")
    plain = run("convert", *words[:2], out="plain")
    tuned = run("convert", *words, out="learned")
    assert [entry["action"] for entry in load(folder / "learned").history] == ["convert", "distill"]
    assert tuned["output_difference"] < plain["output_difference"]
