"""Train a config file with every combination of settings and every seed, and collect the runs.

    python -m results.grid FOLDER --config FILE[:ARGS] [--over NAME=VALUE/VALUE ...] [--seeds N] [--json FILE]
        [--metric NAME] [--task TASK [--limit N] [--beams N]] [--config.FIELD=VALUE ...]

`--over` names an argument of the config file or a field (`config.steps`); settings that change together share one,
`--over heads,head_dim=1,64/2,32`. Every run trains in a workdir of its own in FOLDER, continues where it was stopped,
and is not repeated once it has ended. With a task the trained models are evaluated on it, too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from headjax.data.forms.language import Translations
from headjax.evaluation.predictions import translate
from headjax.evaluation.specs import load_task
from headjax.evaluation.task import measure_task
from headjax.models.model import Model
from headjax.training.config import TrainConfig, train_config
from headjax.training.config_file import load_config
from headjax.training.loop import train
from headjax.training.workdir import check_workdir


class Cell(NamedTuple):
    """One run of a grid: the values of its settings by name, and its seed."""

    settings: Mapping[str, str]
    seed: int

    @property
    def name(self) -> str:
        """Name of the workdir; the same for the same settings in a grid of more values or seeds."""
        return ",".join(f"{name}={value}" for name, value in {**self.settings, "seed": self.seed}.items())

    def config(self, spec: str, overrides: Sequence[str] = ()) -> TrainConfig:
        """Return the run's config; settings that begin with `config.` are fields, others arguments of the file."""
        file, _, given = spec.partition(":")
        arguments = [f"{name}={value}" for name, value in self.settings.items() if not name.startswith("config.")]
        fields = [f"--{name}={value}" for name, value in self.settings.items() if name.startswith("config.")]
        words = ",".join(filter(None, [given, *arguments]))
        config = load_config(f"{file}:{words}" if words else file, [*overrides, *fields, f"--config.seed={self.seed}"])
        return train_config(config)


def cells(over: Sequence[str], seeds: int) -> Iterator[Cell]:
    """Yield every combination of the settings with every seed; seeds change fastest.

    Raises:
        ValueError: a text is not `NAME,NAME=VALUE,VALUE/VALUE,VALUE`.
    """
    axes = []
    for text in over:
        names, _, values = text.partition("=")
        axis = [dict(zip(names.split(","), value.split(","), strict=True)) for value in values.split("/")]
        axes.append(axis)
    for chosen in itertools.product(*axes):
        settings = {name: value for each in chosen for name, value in each.items()}
        yield from (Cell(settings, seed) for seed in range(seeds))


def run(cell: Cell, config: TrainConfig, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the result of a cell, which is trained or read from its file.

    Raises:
        CheckpointError: the folder holds a run of another config.
        SystemExit: a signal interrupted the run; the same command continues it.
    """
    file, measured = folder / f"{cell.name}.json", [config.steps, options.task, options.limit, options.beams]
    if file.is_file():
        check_workdir(folder / cell.name, config)  # a run of another config is not this one
        found = json.loads(file.read_text())
        if found["measured"] == measured:
            return dict(found)
    start = time.perf_counter()
    trained = train(config, folder / cell.name)
    if not trained.finished and trained.diverged is None:
        sys.exit(f"interrupted in {cell.name}; the same command continues from there")
    result = {
        **cell._asdict(),
        "parameters": trained.model.num_parameters,
        "steps": trained.steps,
        "seconds": time.perf_counter() - start,
        "diverged": trained.diverged,
        "metrics": {} if trained.diverged else {**trained.metrics, **task_metrics(trained.model, options)},
        "measured": measured,
    }
    file.write_text(json.dumps(result))
    return result


def task_metrics(model: Model, options: argparse.Namespace) -> Mapping[str, float]:
    """Return a trained model's metrics on the task that the options name; none without one."""
    if not options.task:
        return {}
    task = load_task(options.task, model, 0, split="all")
    metrics = dict(measure_task(model, task, limit=options.limit).metrics)
    pairs = task.data.validation
    if options.beams and isinstance(pairs, Translations):
        metrics["bleu"] = translate(model, pairs.first(options.limit), beams=options.beams).bleu.score
    return metrics


def summaries(results: Sequence[Mapping[str, Any]], metric: str) -> Iterator[str]:
    """Yield a line for each combination of settings: mean and 95 % interval over its seeds, by Student's t."""
    for name, group in itertools.groupby(results, lambda result: Cell(result["settings"], 0).name.rpartition(",")[0]):
        runs = list(group)
        values = [result["metrics"][metric] for result in runs if not result["diverged"]]
        half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values) if len(values) > 1 else float("nan")
        mean = float(np.mean(values)) if values else float("nan")
        yield f"{name or 'all'}: {metric} {mean:.4g} +- {half:.2g}, {len(runs) - len(values)} of {len(runs)} diverged"


def main(words: Sequence[str] | None = None) -> None:
    """Run the grid that the words name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--config", required=True)
    parser.add_argument("--over", action="append", default=[])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--metric", default="loss")
    parser.add_argument("--task", default="")
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--beams", type=int, default=0)
    parser.add_argument("--json", type=Path)
    typed = sys.argv[1:] if words is None else words
    overrides = [word for word in typed if word.startswith("--config.")]
    options = parser.parse_args([word for word in typed if word not in overrides])
    grid = [(cell, cell.config(options.config, overrides)) for cell in cells(options.over, options.seeds)]
    options.folder.mkdir(parents=True, exist_ok=True)
    results = [run(cell, config, options.folder, options) for cell, config in grid]
    print(*summaries(results, options.metric), sep="\n")
    if options.json:
        options.json.write_text(json.dumps({"results": results}, indent=2))


if __name__ == "__main__":
    main()
