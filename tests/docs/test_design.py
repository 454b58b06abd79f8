"""Shapes of models are compared after equal steps and after equal time."""

import json

import numpy as np
import pytest

from docs import design

BASE = design.BASELINE
DEEP = BASE | {"heads": "1", "num_layers": "8"}


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """A grid of two models and two seeds: the deep one learns as fast by steps, and its steps take twice as long."""
    for module in ("docs.design.RAW", "docs.measures.RAW"):
        monkeypatch.setattr(module, tmp_path)
    results = []
    for settings, seconds in ((BASE, 0.1), (DEEP, 0.2)):
        for seed in (0, 1):
            run = tmp_path / design.Cell(settings, seed).name
            run.mkdir()
            losses = 5 - 0.01 * np.arange(1, 201) + 0.1 * seed
            records = [
                {"step": step, "train/loss": loss, "train/step_seconds": 9.0 if step == 1 else seconds}
                for step, loss in enumerate(losses, start=1)
            ]
            records.append({"step": 200, "validation/loss": 3.0})
            (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
            results.append({"settings": settings, "seed": seed, "parameters": 1000})
    (tmp_path / "grid.json").write_text(json.dumps({"results": results}))
    return tmp_path


def test_losses_after_equal_steps_and_equal_time(grid):
    found = json.loads(design.keep("mine", grid / "grid.json", grid).read_text())
    base = found["models"][0]
    assert base["step"] == pytest.approx(0.1)  # compilation, in the first step, is no part of it
    assert base["losses"]["0"] == pytest.approx([4.495, 4.245, 3.995, 3.745, 3.495])
    assert design.shortest(found) == pytest.approx(20)
    assert design.speed_ups(found, DEEP) == pytest.approx([0.5, 0.5])
    assert design.speed_ups(found, BASE) == pytest.approx([1, 1])
    table = design.table(found)
    assert "| 4 | 32 | 4 | 2 | 512 | 1,000 | 100 | 3.545 (3.495 to 3.595) | 3.545 (3.495 to 3.595) | 1.00" in table
    assert "| 1 | 32 | 1 | 8 | 512 | 1,000 | 200 | 3.545 (3.495 to 3.595) | 4.545 (4.495 to 4.595) | 0.50" in table
    assert "the last 100 of 200 steps and of those done after 20 seconds, mean of 2 seeds" in table


def test_a_claim_is_judged_at_equal_steps_or_equal_time(grid):
    found = json.loads(design.keep("mine", grid / "grid.json", grid).read_text())
    found["models"][1]["losses"]["1"][-1] += 0.001  # so that the differences have a spread
    (grid / "design_mine.json").write_text(json.dumps(found))
    deep, base = {"heads": "1"}, {"heads": "4"}
    assert design.no_worse("mine", deep, base, 0.02, equal="steps").verdict == "held"
    assert design.no_worse("mine", deep, base, -0.02, equal="steps").verdict == "did not hold"
    found["models"][1]["losses"]["1"][0] += 0.001
    (grid / "design_mine.json").write_text(json.dumps(found))
    assert design.no_worse("mine", deep, base, 0.02, equal="time").verdict == "did not hold"


def test_the_speed_up_is_that_to_a_loss_that_all_models_reach(grid):
    found = json.loads(design.keep("mine", grid / "grid.json", grid).read_text())
    found["models"][1]["losses"] = {"0": [5.0, 4.5, 4.5, 4.37, 4.4], "1": [5.0, 4.5, 4.4, 4.3, 3.0]}
    # With seed 0 the baseline comes to 4.37 half way between 10 and 12.5 s, the deep model at its fourth loss, after
    # 35 s; with seed 1 both come to the baseline's last, 3.595, the deep one between 35 and 40 s.
    assert design.speed_ups(found, DEEP) == pytest.approx([11.25 / 35, 20 / (35 + 5 * (4.3 - 3.595) / 1.3)])


def test_runs_must_have_logged_every_step(grid):
    file = grid / design.Cell(BASE, 0).name / "metrics.jsonl"
    file.write_text("\n".join(file.read_text().splitlines()[::2]))
    with pytest.raises(ValueError, match="log_every=1"):
        design.keep("mine", grid / "grid.json", grid)
