"""Shapes of models are compared after equal steps, operations and time."""

import json
from pathlib import Path

import numpy as np
import pytest

from docs import design
from headjax.core.configuration import load_config_file
from headjax.core.serialize import to_data
from headjax.training.config import train_config
from headjax.training.workdir import CONFIG

BASE = design.BASELINE
DEEP = BASE | {"heads": "1", "num_layers": "8"}


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """A grid of two models and two seeds, alike by steps; the deep one takes twice the time, 4/3 of the operations."""
    for module in ("docs.design.RAW", "docs.measures.RAW"):
        monkeypatch.setattr(module, tmp_path)
    monkeypatch.setattr("docs.design._flops", lambda run: 400 if "num_layers=8" in run.name else 300)
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


def test_losses_after_equal_steps_operations_and_time(grid):
    found = json.loads(design.keep("mine", grid / "grid.json", grid).read_text())
    base = found["models"][0]
    assert base["step"] == pytest.approx(0.1)  # compilation, in the first step, is no part of it
    assert base["losses"]["0"] == pytest.approx([4.495, 4.245, 3.995, 3.745, 3.495])
    assert design.budget(found, "step") == pytest.approx(20)
    assert design.budget(found, "flops") == 200 * 300
    assert design.speed_ups(found, DEEP) == pytest.approx([0.5, 0.5])
    assert design.speed_ups(found, BASE) == pytest.approx([1, 1])
    table = design.table(found)
    spent, early = "3.545 (2.910 to 4.180)", "4.545 (3.910 to 5.180)"  # 12.7 standard errors, of two seeds
    assert f"| 4 | 16 | 4 | 2 | 256 | 1,000 | 100 | 100 | {spent} | {spent} | {spent} | 1.00" in table
    equal = "4.045 (3.410 to 4.680)"  # 150 of 200 steps
    assert f"| 1 | 16 | 1 | 8 | 256 | 1,000 | 133 | 200 | {spent} | {equal} | {early} | 0.50" in table
    assert "the last 100 of 200 steps, of as many as take the operations of the cheapest model" in table
    assert "after 20 seconds, mean of 2 seeds" in table


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
    found["models"][1]["losses"]["1"][2] += 0.001
    (grid / "design_mine.json").write_text(json.dumps(found))
    assert design.no_worse("mine", deep, base, 0.48, equal="operations").verdict == "did not hold"
    assert design.no_worse("mine", deep, base, 0.52, equal="operations").verdict == "held"


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


def test_operations_are_those_of_the_runs_config(tmp_path):
    file = Path(__file__).parents[2] / "configs" / "small" / "head_shapes.py"
    counts = []
    for arguments in ("width=64", "width=64,num_layers=4"):
        config = train_config(load_config_file(f"{file}:{arguments}"))
        (tmp_path / CONFIG).write_text(json.dumps(to_data(config)))
        counts.append(design._flops(tmp_path))
    assert counts[1] == config.architecture().flops(128)
    assert 1.5 * counts[0] < counts[1] < 2 * counts[0]  # logits do not double
