"""Shapes of models at equal parameters: losses after equal steps, operations and time, from the runs of a grid.

    python -m docs.design NAME GRID.json FOLDER   # keeps docs/measurements/design_NAME.json
    python -m docs.tables                         # writes the table into docs/head_size.md

`GRID.json` and `FOLDER` are what `headjax grid FOLDER --json GRID.json --config.log_every=1` writes. The losses are of
the training batches, of which none comes twice, as means over `WINDOW` steps. Runs of one seed read the same batches.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from docs.measures import RAW, Found, at_most, duration, mean_and_interval, raw, rounded
from headjax.training.config import train_config
from headjax.training.grid import Cell
from headjax.training.recording import read_metrics
from headjax.training.workdir import CONFIG

WINDOW, EVERY = 100, 25
"""Steps that a loss is the mean of, and steps from one of these losses to the next."""

COLUMNS = {"heads": "heads", "head_dim": "size", "kv_heads": "key heads", "num_layers": "layers", "hidden": "hidden"}
"""Settings of the config file by the columns of the table."""

BASELINE = {"heads": "4", "head_dim": "16", "kv_heads": "0", "num_layers": "2", "hidden": "256"}
"""Model that the others are compared with."""

Settings = Mapping[str, str]
Model = Mapping[str, Any]


class Curve(NamedTuple):
    """Losses of a run.

    Attributes:
        steps: steps that were done by then.
        losses: nats per byte.
    """

    steps: np.ndarray
    losses: np.ndarray

    def after(self, steps: float) -> float:
        """Return the loss after so many steps, between two losses that were taken."""
        return float(np.interp(steps, self.steps, self.losses))

    def reaches(self, loss: float) -> float:
        """Return the steps after which the loss is at most this, which it comes to."""
        first = int(np.flatnonzero(self.losses <= loss)[0])
        part = slice(max(first - 1, 0), first + 1)
        return float(np.interp(-loss, -self.losses[part], self.steps[part]))


def keep(name: str, grid: Path, folder: Path) -> Path:
    """Write every model's settings, parameters, operations of a forward pass, time of a step and losses by seed."""
    results = json.loads(grid.read_text())["results"]
    models: dict[str, dict[str, Any]] = {}
    for found in results:
        run = folder / Cell(found["settings"], found["seed"]).name
        losses, seconds = _read(run / "metrics.jsonl")
        model = models.setdefault(
            json.dumps(found["settings"]),
            {key: found[key] for key in ("settings", "parameters")} | {"flops": _flops(run), "step": [], "losses": {}},
        )
        model["step"].append(float(np.median(seconds)))
        means = np.convolve(losses, np.full(WINDOW, 1 / WINDOW), mode="valid")[::EVERY]
        model["losses"][str(found["seed"])] = means.tolist()
    rows = ",\n".join(
        json.dumps(rounded(model | {"step": float(np.median(model["step"]))})) for model in models.values()
    )
    file = RAW / f"design_{name}.json"
    file.write_text(f'{{"models": [\n{rows}\n]}}\n')
    return file


def _flops(run: Path) -> int:
    """Return the operations of a forward pass over one example."""
    written = json.loads((run / CONFIG).read_text())
    return train_config(written).architecture().flops(written["data"]["length"])


def _read(file: Path) -> tuple[list[float], list[float]]:
    """Return the loss of every step, and the seconds of every step but the first, which compiles."""
    steps = [record for record in read_metrics(file) if "train/loss" in record]
    if [record["step"] for record in steps] != list(range(1, len(steps) + 1)):
        raise ValueError(f"{file}: expected every step, as of --config.log_every=1")
    return [record["train/loss"] for record in steps], [record["train/step_seconds"] for record in steps[1:]]


def curves(model: Model) -> dict[str, Curve]:
    """Return a model's runs by seed."""
    return {
        seed: Curve(WINDOW + EVERY * np.arange(len(losses)), np.array(losses))
        for seed, losses in model["losses"].items()
    }


def model_of(found: Mapping[str, Any], settings: Settings) -> Model:
    """Return the model with these settings among its own."""
    (model,) = [each for each in found["models"] if settings.items() <= each["settings"].items()]
    return model


def budget(found: Mapping[str, Any], cost: str) -> float:
    """Return the seconds (`step`) or operations (`flops`) that the cheapest model has taken with all steps."""
    return min(float(curve.steps[-1]) * model[cost] for model in found["models"] for curve in curves(model).values())


def losses_after(found: Mapping[str, Any], model: Model, cost: str | None) -> dict[str, float]:
    """Return a model's losses by seed, after all steps or after equal seconds or operations; see `budget`."""
    runs = curves(model)
    if cost is None:
        return {seed: float(curve.losses[-1]) for seed, curve in runs.items()}
    steps = budget(found, cost) / model[cost]
    return {seed: curve.after(steps) for seed, curve in runs.items()}


def speed_ups(found: Mapping[str, Any], settings: Settings) -> list[float]:
    """Return by how much sooner than the baseline each run has the lowest loss that all models reach with its seed."""
    runs = [curves(model) for model in found["models"]]
    model, baseline = model_of(found, settings), model_of(found, BASELINE)
    base, faster = curves(baseline), []
    for seed, curve in curves(model).items():
        loss = max(float(other[seed].losses.min()) for other in runs)
        faster.append(base[seed].reaches(loss) * baseline["step"] / (curve.reaches(loss) * model["step"]))
    return faster


def table(found: Mapping[str, Any]) -> str:
    """Return the table of all models beside the baseline."""
    baseline, time = model_of(found, BASELINE), budget(found, "step")
    columns = [*COLUMNS.values(), "parameters", "operations, %", "step, ms"]
    columns += ["loss after all steps", "after equal operations", f"after {time:.0f} s", "speed-up"]
    lines = [
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    for model in found["models"]:
        shape = [model["settings"][name] for name in COLUMNS]
        shape[2] = shape[2] if shape[2] != "0" else shape[0]  # every head its own
        cells = [
            *shape,
            f"{model['parameters']:,}",
            f"{100 * model['flops'] / baseline['flops']:.0f}",
            f"{1000 * model['step']:.0f}",
            *(mean_and_interval([*losses_after(found, model, cost).values()], 3) for cost in (None, "flops", "step")),
            mean_and_interval(speed_ups(found, model["settings"])),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    steps = int(next(iter(curves(baseline).values())).steps[-1])
    intro = (
        f"Nats per byte over the last {WINDOW} of {steps:,} steps, of as many as take the operations of the "
        f"cheapest model, and of those done after {time:.0f} seconds, mean of {len(baseline['losses'])} seeds (95 % "
        "interval); operations of a forward pass, of the baseline's (first row); speed-up: time to the lowest loss "
        "that all models reach, the baseline's over each one's."
    )
    return "\n".join([intro, "", *lines])


def time(name: str) -> str:
    """Return how many runs there are, and how long their steps took together."""
    runs = [
        (model["step"], curve.steps[-1])
        for model in raw(f"design_{name}")["models"]
        for curve in curves(model).values()
    ]
    return f"{duration(sum(step * steps for step, steps in runs))}, {len(runs)} runs"


COSTS: Mapping[str, str | None] = {"steps": None, "operations": "flops", "time": "step"}
"""What models may have spent equally, with the entry of the raw results that has a step's cost."""


def no_worse(name: str, one: Settings, other: Settings, most: float, *, equal: str) -> Found:
    """Return mean losses after equal `steps`, `operations` or `time`; see `docs.measures.no_worse`."""
    found = raw(f"design_{name}")
    first, second = (losses_after(found, model_of(found, settings), COSTS[equal]) for settings in (one, other))
    seeds = sorted(first.keys() & second.keys())
    return at_most([first[seed] for seed in seeds], [second[seed] for seed in seeds], most)


if __name__ == "__main__":
    print(keep(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
