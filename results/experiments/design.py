"""Shapes of models at equal parameters: losses after equal steps, FLOPs and time, from the runs of a grid.

    python -m results.experiments.design GRID.json FOLDER     # writes results/measurements/design_heads.csv

`GRID.json` and `FOLDER` are what `python -m results.grid FOLDER --json GRID.json --config.log_every=1` writes. The
losses are of training batches, of which none comes twice, as means over `WINDOW` steps. Runs of one seed read the same
batches.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headjax.training.config import train_config
from headjax.training.recording import read_metrics
from headjax.training.workdir import CONFIG
from results.collect import settings
from results.grid import Cell
from results.table import Row, write

WINDOW, EVERY = 100, 25
"""Steps that a loss is the mean of, and steps from one of these losses to the next."""


class Run(NamedTuple):
    """A training run.

    Attributes:
        setting, seed: Which one.
        steps, losses: Steps done, and the losses by then.
        step: Median seconds of a step.
        flops: Of a forward pass over one example.
    """

    setting: str
    seed: str
    steps: np.ndarray
    losses: np.ndarray
    step: float
    flops: float

    def after(self, steps: float) -> float:
        """Return the loss after so many steps, between two losses that were taken."""
        return float(np.interp(steps, self.steps, self.losses))


def read_runs(grid: Path, folder: Path) -> list[Run]:
    """Return the runs of a grid; all of a setting have the median time of a step.

    Raises:
        ValueError: A run did not log every step.
    """
    runs = []
    for found in json.loads(grid.read_text(encoding="utf-8"))["results"]:
        run = folder / Cell(found["settings"], found["seed"]).name
        steps = [record for record in read_metrics(run / "metrics.jsonl") if "train/loss" in record]
        if [record["step"] for record in steps] != list(range(1, len(steps) + 1)):
            raise ValueError(f"{run}: expected every step, as of --config.log_every=1")
        losses = [record["train/loss"] for record in steps]
        means = np.convolve(losses, np.full(WINDOW, 1 / WINDOW), mode="valid")[::EVERY]
        taken = WINDOW + EVERY * np.arange(len(means))
        seconds = float(np.median([record["train/step_seconds"] for record in steps[1:]]))  # the first one compiles
        name, flops = settings(found["settings"]), float(_flops(run))
        runs.append(Run(name, str(found["seed"]), taken, means, seconds, flops))
    times = {run.setting: [each.step for each in runs if each.setting == run.setting] for run in runs}
    return [run._replace(step=float(np.median(times[run.setting]))) for run in runs]


def _flops(run: Path) -> int:
    written = json.loads((run / CONFIG).read_text(encoding="utf-8"))
    return train_config(written).architecture().flops(written["data"]["length"])


def measure(runs: list[Run]) -> Iterator[Row]:
    """Yield losses after all steps, and after the FLOPs and the time that the cheapest model takes for all of them."""
    costs = {"flops": [run.flops for run in runs], "time": [run.step for run in runs]}
    budgets = {
        name: min(float(run.steps[-1]) * cost for run, cost in zip(runs, each, strict=True))
        for name, each in costs.items()
    }
    for place, run in enumerate(runs):
        row = Row(run.setting, run.seed)
        yield row._replace(metric="step seconds", value=run.step)
        yield row._replace(
            metric="loss at equal steps", value=float(run.losses[-1]), seconds=run.step * float(run.steps[-1])
        )
        for name, budget in budgets.items():
            yield row._replace(metric=f"loss at equal {name}", value=run.after(budget / costs[name][place]))


if __name__ == "__main__":
    write("design_heads", measure(read_runs(Path(sys.argv[1]), Path(sys.argv[2]))))
