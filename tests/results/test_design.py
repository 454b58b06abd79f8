"""Shapes of models are compared after equal steps, FLOPs and time."""

import json
from pathlib import Path

import numpy as np
import pytest

from headjax.core.configuration import load_config_file
from headjax.core.serialize import to_data
from headjax.training.config import train_config
from headjax.training.grid import Cell
from headjax.training.workdir import CONFIG
from results.experiments import design

BASE = {"heads": "4", "num_layers": "2"}
DEEP = {"heads": "1", "num_layers": "8"}


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """A grid of two models and two seeds, alike by steps; the deep one takes twice the time, 4/3 of the FLOPs."""
    monkeypatch.setattr(design, "_flops", lambda run: 400 if "num_layers=8" in run.name else 300)
    results = []
    for settings, seconds in ((BASE, 0.1), (DEEP, 0.2)):
        for seed in (0, 1):
            run = tmp_path / Cell(settings, seed).name
            run.mkdir()
            losses = 5 - 0.01 * np.arange(1, 201) + 0.1 * seed
            records = [
                {"step": step, "train/loss": loss, "train/step_seconds": 9.0 if step == 1 else seconds}
                for step, loss in enumerate(losses, start=1)
            ]
            records.append({"step": 200, "validation/loss": 3.0})
            (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
            results.append({"settings": settings, "seed": seed})
    (tmp_path / "grid.json").write_text(json.dumps({"results": results}))
    return tmp_path


def test_losses_after_equal_steps_flops_and_time(grid):
    found = {
        (row.setting, row.seed, row.metric): row.value
        for row in design.measure(design.read_runs(grid / "grid.json", grid))
    }
    base, deep = "heads=4,num_layers=2", "heads=1,num_layers=8"
    assert found[base, "0", "step seconds"] == pytest.approx(0.1)  # compilation, in the first step, is no part of it
    for metric in ("steps", "flops", "time"):
        assert found[base, "0", f"loss at equal {metric}"] == pytest.approx(3.495)
        assert found[base, "1", f"loss at equal {metric}"] == pytest.approx(3.595)
    assert found[deep, "0", "loss at equal steps"] == pytest.approx(3.495)
    assert found[deep, "0", "loss at equal flops"] == pytest.approx(3.995)  # 150 of 200 steps
    assert found[deep, "0", "loss at equal time"] == pytest.approx(4.495)  # 100 steps


def test_runs_must_have_logged_every_step(grid):
    file = grid / Cell(BASE, 0).name / "metrics.jsonl"
    file.write_text("\n".join(file.read_text().splitlines()[::2]))
    with pytest.raises(ValueError, match="log_every=1"):
        design.read_runs(grid / "grid.json", grid)


def test_flops_are_those_of_the_runs_config(tmp_path):
    file = Path(__file__).parents[2] / "configs" / "small" / "head_shapes.py"
    counts = []
    for arguments in ("width=64", "width=64,num_layers=4"):
        config = train_config(load_config_file(f"{file}:{arguments}"))
        (tmp_path / CONFIG).write_text(json.dumps(to_data(config)))
        counts.append(design._flops(tmp_path))
    assert counts[1] == config.architecture().flops(128)
    assert 1.5 * counts[0] < counts[1] < 2 * counts[0]  # logits do not double
