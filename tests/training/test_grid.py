"""Grids: every combination once, by names that stay; configs checked before the first run; intervals over seeds."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from headjax.core.errors import CheckpointError, ConfigError, DataError
from headjax.training.grid import Axis, Cell, CellResult, Grid, mean_interval, pick, summarize

CONFIG = """
from ml_collections import ConfigDict
from headjax.core.configuration import parse_arguments

def get_config(arg=""):
    knobs = parse_arguments(arg, heads=2, width=16, peak=0.01)
    return ConfigDict({
        "model": {"kind": "language_model", "vocab_size": 257, "max_length": 8, "width": knobs.width, "num_layers": 1,
                  "attention": {"kind": "multi_head", "num_heads": knobs.heads, "head_dim": 8},
                  "feed_forward": {"kind": "dense", "hidden": 16}, "residual": {"kind": "pre_norm"}},
        "data": {"kind": "language", "path": PATH, "length": 8, "tokenizer": "bytes"},
        "batch_size": 8, "steps": 2, "tensorboard": False,
        "optimizer": {"kind": "adamw", "schedule": {"kind": "constant_rate", "peak": knobs.peak}},
    })
"""


@pytest.fixture
def spec(tmp_path: Path) -> str:
    text = tmp_path / "text.txt"
    text.write_text("the heads of a model attend to many things. " * 20)
    file = tmp_path / "config.py"
    file.write_text(CONFIG.replace("PATH", repr(str(text))))
    return str(file)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("heads=1/2", Axis(("heads",), (("1",), ("2",)))),
        ("heads,width=1,8/2,16", Axis(("heads", "width"), (("1", "8"), ("2", "16")))),
        ("config.steps=3", Axis(("config.steps",), (("3",),))),
        ("heads", "expected SETTING=VALUE/VALUE, got 'heads'"),
        ("=1", "expected SETTING=VALUE/VALUE"),
        ("heads=1//2", "heads: expected 1 in each value, got ''"),
        ("heads,width=1,2/3", "heads,width: expected 2 in each value, got '3'"),
        ("heads=1/1", "heads: a value is given twice"),
    ],
)
def test_axes_are_read_or_refused(text: str, expected: Axis | str) -> None:
    if isinstance(expected, Axis):
        assert Axis.parse(text) == expected
    else:
        with pytest.raises(ConfigError, match=f"^--over: {expected}"):
            Axis.parse(text)


def test_a_grid_holds_every_combination_with_every_seed(spec: str, tmp_path: Path) -> None:
    axes = [Axis.parse("heads,width=1,8/2,16"), Axis.parse("config.batch_size=8/4")]
    grid = Grid.of(f"{spec}:peak=0.5", ["--config.steps=3"], axes, 3, tmp_path)
    assert len({cell.name for cell in grid.cells}) == len(grid.cells) == 12
    assert grid.cells[4] == Cell({"heads": "1", "width": "8", "config.batch_size": "4"}, 1)
    assert grid.cells[4].name == "heads=1,width=8,config.batch_size=4,seed=1"
    config = grid.configs[4]
    assert (config.batch_size, config.seed, config.steps) == (4, 1, 3)
    assert (config.architecture().width, config.optimizer.schedule.peak) == (8, 0.5)


@pytest.mark.parametrize(
    ("over", "seeds", "message"),
    [
        ([], 1, "--over: "),
        (["depth=1/2"], 1, "cell depth=1,seed=0: .*unknown argument 'depth'"),
        (["config.batch_sizes=1/2"], 1, "cell config.batch_sizes=1,seed=0: config.batch_sizes: unknown field"),
        (["heads=1/none"], 1, "cell heads=none,seed=0: .*expected int, got 'none'"),
        (["config.batch_size=1/0"], 1, "cell config.batch_size=0,seed=0: config.batch_size: must be an integer"),
        (["heads=1/2", "heads=3"], 1, "--over: "),
        (["heads=1/2"], 10**9, "--over: "),
        (["config.seed=1/2"], 1, "--over: "),
    ],
)
def test_a_bad_cell_fails_before_the_first_run(
    spec: str, tmp_path: Path, over: list[str], seeds: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        Grid.of(spec, [], [Axis.parse(text) for text in over], seeds, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_cells_are_picked_by_number() -> None:
    assert pick("1/12", 12) == 0
    assert pick("12/12", 12) == 11
    for text in ("0/12", "13/12", "3", "3/11", "-1/12", "a/12"):
        with pytest.raises(ConfigError, match=r"^--cell: "):
            pick(text, 12)


def result(heads: str, seed: int, loss: float | None) -> CellResult:
    metrics = {} if loss is None else {"loss": loss}
    return CellResult({"heads": heads}, seed, 10, 5, 1.0, 2.0, "loss is nan" if loss is None else None, metrics)


def test_summaries_have_student_intervals_and_count_diverged_runs() -> None:
    found = [result("1", seed, loss) for seed, loss in enumerate((1.0, 2.0, 4.5))]
    found += [result("2", 0, 3.0), result("2", 1, None), result("4", 0, None)]
    one, two, four = summarize(found, "loss")
    assert (one.mean, one.runs, one.diverged) == (2.5, 3, 0)
    half = 4.302652729911275 * np.std([1.0, 2.0, 4.5], ddof=1) / np.sqrt(3)
    np.testing.assert_allclose((one.low, one.high), (2.5 - half, 2.5 + half))
    assert (two.mean, two.low, two.high, two.runs, two.diverged) == (3.0, None, None, 1, 1)
    assert (four.mean, four.runs, four.diverged) == (None, 0, 1)
    with pytest.raises(DataError, match=r"^metric: "):
        summarize(found, "bleu")


def test_intervals_cover_the_mean_as_often_as_they_say() -> None:
    draws = np.random.default_rng(0).normal(size=(2000, 3))
    inside = sum(low <= 0.0 <= high for low, high in (mean_interval(row) for row in draws))
    assert 0.93 < inside / 2000 < 0.97


@pytest.mark.whole
def test_a_cell_runs_alone_and_its_result_stays(spec: str, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    grid = Grid.of(spec, [], [Axis.parse("peak=0.01/1e30")], 1, folder)
    assert grid.result(0) is None
    assert grid.run(0, lambda model: {"parameters_seen": model.num_parameters})
    found = grid.result(0)
    assert found is not None
    assert found.metrics["parameters_seen"] == found.parameters
    assert found.metrics["loss"] > 0
    assert found.steps == 2
    again = dataclasses.replace(grid, measured="other examples")
    assert again.result(0) is None  # a metric on other examples is not this one
    assert again.run(0, lambda model: {"seen": 1.0})
    renewed = again.result(0)
    assert renewed is not None
    assert renewed.metrics.keys() == found.metrics.keys() - {"parameters_seen"} | {"seen"}
    assert renewed.metrics["loss"] == found.metrics["loss"]
    assert (renewed.seconds, renewed.tokens_per_second) == (found.seconds, found.tokens_per_second)
    assert grid.result(0) == renewed  # without a task any does
    assert grid.run(1)
    diverged = grid.result(1)
    assert diverged is not None
    assert diverged.diverged is not None
    assert diverged.metrics == {}

    longer = Grid.of(spec, ["--config.steps=4"], [Axis.parse("peak=0.01/1e30")], 1, folder)
    assert longer.result(0) is None
    other = Grid.of(spec, ["--config.batch_size=16"], [Axis.parse("peak=0.01/1e30")], 1, folder)
    with pytest.raises(CheckpointError, match=r"config\.batch_size is 8 there and 16 here"):
        other.result(0)
    grid.file(grid.cells[0]).write_text(json.dumps({"loss": 1.0}))
    with pytest.raises(DataError, match="not the result of a cell"):
        grid.result(0)
