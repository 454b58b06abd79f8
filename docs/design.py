"""Shapes of models at equal parameters: losses after equal steps and after equal time, from the runs of a grid.

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

from docs.measures import RAW, Found, at_most, mean_and_range, raw, rounded
from headjax.training.grid import Cell
from headjax.training.recording import read_metrics

WINDOW, EVERY = 100, 25
"""Steps that a loss is the mean of, and steps from one of these losses to the next."""

COLUMNS = {"heads": "heads", "head_dim": "size", "kv_heads": "key heads", "num_layers": "layers", "hidden": "hidden"}
"""Settings of the config file by the columns of the table."""

BASELINE = {"heads": "4", "head_dim": "32", "kv_heads": "0", "num_layers": "2", "hidden": "512"}
"""Model that the others are compared with."""

Settings = Mapping[str, str]


class Curve(NamedTuple):
    """Losses of a run.

    Attributes:
        seconds: time that each loss had taken, at the median time of a step.
        losses: nats per byte.
    """

    seconds: np.ndarray
    losses: np.ndarray

    def after(self, seconds: float) -> float:
        """Return the loss after this time, between two losses that were taken."""
        return float(np.interp(seconds, self.seconds, self.losses))

    def reaches(self, loss: float) -> float:
        """Return the time after which the loss is at most this, which it comes to."""
        first = int(np.flatnonzero(self.losses <= loss)[0])
        part = slice(max(first - 1, 0), first + 1)
        return float(np.interp(-loss, -self.losses[part], self.seconds[part]))


def keep(name: str, grid: Path, folder: Path) -> Path:
    """Write every model's settings, parameters, time of a step and losses by seed."""
    results = json.loads(grid.read_text())["results"]
    models: dict[str, dict[str, Any]] = {}
    for found in results:
        run = folder / Cell(found["settings"], found["seed"]).name
        losses, seconds = _read(run / "metrics.jsonl")
        model = models.setdefault(
            json.dumps(found["settings"]),
            {"settings": found["settings"], "parameters": found["parameters"], "step": [], "losses": {}},
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


def _read(file: Path) -> tuple[list[float], list[float]]:
    """Return the loss of every step, and the seconds of every step but the first, which compiles."""
    steps = [record for record in read_metrics(file) if "train/loss" in record]
    if [record["step"] for record in steps] != list(range(1, len(steps) + 1)):
        raise ValueError(f"{file}: expected every step, as of --config.log_every=1")
    return [record["train/loss"] for record in steps], [record["train/step_seconds"] for record in steps[1:]]


def curves(model: Mapping[str, Any]) -> dict[str, Curve]:
    """Return a model's runs by seed."""
    return {
        seed: Curve((WINDOW + EVERY * np.arange(len(losses))) * model["step"], np.array(losses))
        for seed, losses in model["losses"].items()
    }


def model_of(found: Mapping[str, Any], settings: Settings) -> Mapping[str, Any]:
    """Return the model with these settings among its own."""
    (model,) = [each for each in found["models"] if settings.items() <= each["settings"].items()]
    return model


def shortest(found: Mapping[str, Any]) -> float:
    """Return the time after which the quickest model has done all steps."""
    return min(float(curve.seconds[-1]) for model in found["models"] for curve in curves(model).values())


def speed_ups(found: Mapping[str, Any], settings: Settings) -> list[float]:
    """Return by how much sooner than the baseline each run has the lowest loss that all models reach with its seed."""
    runs = [curves(model) for model in found["models"]]
    own, baseline = curves(model_of(found, settings)), curves(model_of(found, BASELINE))
    faster = []
    for seed, curve in own.items():
        loss = max(float(model[seed].losses.min()) for model in runs)
        faster.append(baseline[seed].reaches(loss) / curve.reaches(loss))
    return faster


def table(found: Mapping[str, Any]) -> str:
    """Return the table of all models beside the baseline."""
    baseline, time = model_of(found, BASELINE), shortest(found)
    columns = [*COLUMNS.values(), "parameters", "step, ms", "loss after all steps", f"after {time:.0f} s", "speed-up"]
    lines = [
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    for model in found["models"]:
        runs = list(curves(model).values())
        shape = [model["settings"][name] for name in COLUMNS]
        shape[2] = shape[2] if shape[2] != "0" else shape[0]  # every head its own
        cells = [
            *shape,
            f"{model['parameters']:,}",
            f"{1000 * model['step']:.0f}",
            mean_and_range([curve.losses[-1] for curve in runs], 3),
            mean_and_range([curve.after(time) for curve in runs], 3),
            mean_and_range(speed_ups(found, model["settings"])),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    steps = WINDOW + EVERY * (len(next(iter(baseline["losses"].values()))) - 1)
    intro = (
        f"Nats per byte over the last {WINDOW} of {steps} steps and of those done after {time:.0f} seconds, mean of "
        f"{len(baseline['losses'])} seeds (lowest to highest); speed-up: time to the lowest loss that all models "
        "reach, the baseline's (first row) over each one's."
    )
    return "\n".join([intro, "", *lines])


def no_worse(name: str, one: Settings, other: Settings, most: float, *, equal: str) -> Found:
    """Return mean losses after equal `steps` or equal `time`; see `docs.measures.no_worse`."""
    found = raw(f"design_{name}")
    time = shortest(found)
    first, second = (
        {seed: curve.losses[-1] if equal == "steps" else curve.after(time) for seed, curve in curves(model).items()}
        for model in (model_of(found, one), model_of(found, other))
    )
    seeds = sorted(first.keys() & second.keys())
    values = [[float(losses[seed]) for seed in seeds] for losses in (first, second)]
    return at_most(values[0], values[1], most)


if __name__ == "__main__":
    print(keep(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
