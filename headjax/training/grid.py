"""Grids of training runs: every combination of settings, with every seed; each cell runs alone, and all are collected.

A cell is one run of a config file with some settings. It trains in a workdir of its own and leaves one JSON file
beside it, so cells may run anywhere and in any order: one after another, or spread by a scheduler's array of jobs.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headjax.core.errors import ConfigError, DataError, require
from headjax.core.progress import Progress, silent
from headjax.models.model import Model
from headjax.storage.files import read_document, write_file
from headjax.training.config import TrainConfig, load_config, train_config
from headjax.training.loop import train
from headjax.training.workdir import check_workdir

FIELD = "config."
"""Beginning of a setting that is a field of the config; other settings are arguments of the config file."""


MOST_CELLS = 10_000
"""Greatest number of cells: every config is built before the first run."""

Measured = Callable[[Model], Mapping[str, float]]
"""Metrics of a trained model."""


class Axis(NamedTuple):
    """Settings that change together, and their values.

    Attributes:
        names: fields (`config.batch_size`) or arguments of the config file (`num_heads`).
        values: one text for each name, `[values][names]`.
    """

    names: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]

    @classmethod
    def parse(cls, text: str) -> Axis:
        """Read `num_heads=1/2/4`, or `num_heads,head_dim=1,64/2,32` for settings that change together.

        Raises:
            ConfigError: no name, no value, or values that are not one for each name.
        """
        left, equals, right = text.partition("=")
        names = tuple(left.removeprefix("--").split(","))
        if not equals or not all(names):
            raise ConfigError(f"--over: expected SETTING=VALUE/VALUE, got {text!r}")
        values = tuple(tuple(value.split(",")) if len(names) > 1 else (value,) for value in right.split("/"))
        for value in values:
            if len(value) != len(names) or not all(value):
                raise ConfigError(f"--over: {left}: expected {len(names)} in each value, got {','.join(value)!r}")
        if len(set(values)) < len(values):
            raise ConfigError(f"--over: {left}: a value is given twice")
        return cls(names, values)


class Cell(NamedTuple):
    """One run of a grid.

    Attributes:
        settings: the values of the axes by name, in order.
        seed: `config.seed`.
    """

    settings: Mapping[str, str]
    seed: int

    @property
    def name(self) -> str:
        """Name of the workdir; the same for the same settings in a grid of more values or seeds."""
        return ",".join(f"{name}={value}" for name, value in {**self.settings, "seed": self.seed}.items())

    def config(self, spec: str, overrides: Sequence[str]) -> TrainConfig:
        """Return the run's config.

        Args:
            spec: the config file, `FILE[:ARGS]`.
            overrides: `--config.FIELD=VALUE` of all cells.

        Raises:
            ConfigError: an unknown setting, or a value that it cannot have; the message names the cell.
        """
        arguments = [f"{name}={value}" for name, value in self.settings.items() if not name.startswith(FIELD)]
        fields = [f"--{name}={value}" for name, value in self.settings.items() if name.startswith(FIELD)]
        given = ",".join(filter(None, [spec.partition(":")[2], *arguments]))
        file = spec.partition(":")[0]
        try:
            every = [*overrides, *fields, f"--{FIELD}seed={self.seed}"]
            config = train_config(load_config(f"{file}:{given}" if given else file, every))
            config.architecture()
        except ConfigError as error:
            raise ConfigError(f"cell {self.name}: {error}") from None
        return config


class CellResult(NamedTuple):
    """Outcome of a cell.

    Attributes:
        settings, seed: those of the cell.
        parameters: number of the model's parameters.
        steps: optimizer steps done.
        seconds: time of the run; of its last part where it was interrupted.
        tokens_per_second: see `TrainResult`.
        diverged: reason for which the run counts as diverged; None where it did not.
        metrics: of the validation split and, by its own names, of a task; empty where the run diverged.
    """

    settings: Mapping[str, str]
    seed: int
    parameters: int
    steps: int
    seconds: float
    tokens_per_second: float
    diverged: str | None
    metrics: Mapping[str, float]


def _nothing(model: Model) -> Mapping[str, float]:
    return {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid:
    """The cells of a grid, each with a valid config.

    Attributes:
        cells: the cells by number; seeds change fastest.
        configs: their configs.
        folder: holds a workdir and a JSON file for each cell.
        measured: what the further metrics of a cell are taken on; a cell that was measured otherwise is measured again.
            Empty takes any.
    """

    cells: tuple[Cell, ...]
    configs: tuple[TrainConfig, ...]
    folder: Path
    measured: str = ""

    @classmethod
    def of(
        cls, spec: str, overrides: Sequence[str], axes: Sequence[Axis], seeds: int, folder: Path, measured: str = ""
    ) -> Grid:
        """Return the grid of all combinations; every config has been built once.

        Raises:
            ConfigError: no cell, a setting named twice, or a cell whose config cannot be built.
        """
        require(bool(axes) or seeds > 1, "--over", "a grid needs settings, such as --over num_heads=1/2/4, or --seeds")
        names = [name for axis in axes for name in axis.names]
        for name in names:
            require(names.count(name) == 1, "--over", f"{name} is given twice")
            require(name not in ("seed", f"{FIELD}seed"), "--over", "--seeds sets the seed of every cell")
        count = math.prod(len(axis.values) for axis in axes) * seeds
        require(count <= MOST_CELLS, "--over", f"{count:,} cells are more than a grid may have, {MOST_CELLS:,}")
        cells = tuple(
            Cell(dict(zip(names, itertools.chain(*values), strict=True)), seed)
            for values in itertools.product(*(axis.values for axis in axes))
            for seed in range(seeds)
        )
        configs = tuple(cell.config(spec, overrides) for cell in cells)
        return cls(cells=cells, configs=configs, folder=folder, measured=measured)

    def file(self, cell: Cell) -> Path:
        """Return the path of a cell's result."""
        return self.folder / f"{cell.name}.json"

    def result(self, number: int) -> CellResult | None:
        """Return the result of a cell, counted from 0.

        None where it has not ended, was run for fewer steps, or was measured on something else.

        Raises:
            CheckpointError: the cell was run with another config.
            DataError: the file holds something else.
        """
        found = self._stored(number)
        if found is None or (self.measured and found[1] != self.measured and found[0].diverged is None):
            return None
        return found[0]

    def _stored(self, number: int) -> tuple[CellResult, str] | None:
        """Return the result of a cell that has ended, and what it was measured on."""
        cell, config = self.cells[number], self.configs[number]
        file = self.file(cell)
        if not file.is_file() or check_workdir(self.folder / cell.name, config) < config.steps:
            return None
        try:
            data = json.loads(read_document(file))
            measured = str(data.pop("measured", ""))
            return CellResult(**data), measured
        except (ValueError, TypeError) as error:
            raise DataError(f"{file}: not the result of a cell ({' '.join(str(error).split())})") from None

    def run(self, number: int, measure: Measured = _nothing, progress: Progress = silent) -> bool:
        """Train a cell, or continue its training, and keep its result.

        Args:
            number: the cell, counted from 0.
            measure: returns further metrics of the trained model.
            progress: shows the advance.

        Returns:
            Whether the run has ended; False where a signal interrupted it.
        """
        cell, before = self.cells[number], self._stored(number)
        start = time.perf_counter()
        trained = train(self.configs[number], self.folder / cell.name, progress=progress)
        if not trained.finished and trained.diverged is None:
            return False
        metrics = {} if trained.diverged else {**trained.metrics, **measure(trained.model)}
        found = CellResult(
            settings=cell.settings,
            seed=cell.seed,
            parameters=trained.model.num_parameters,
            steps=trained.steps,
            seconds=time.perf_counter() - start,
            tokens_per_second=trained.tokens_per_second,
            diverged=trained.diverged,
            metrics=metrics,
        )
        if before is not None:  # trained already, and only measured again
            found = before[0]._replace(metrics=metrics)
        write_file(self.file(cell), json.dumps(found._asdict() | {"measured": self.measured}).encode())
        return True


class Summary(NamedTuple):
    """A metric of all seeds of a cell's settings.

    Attributes:
        settings: the settings.
        parameters: number of parameters.
        runs: number of runs that ended without diverging.
        diverged: number of runs that diverged.
        mean: mean over the runs; None where all diverged.
        low, high: 95 % confidence interval of the mean by Student's t; None with fewer than two runs.
        values: the metric of each run.
        seconds: mean time of a run.
    """

    settings: Mapping[str, str]
    parameters: int
    runs: int
    diverged: int
    mean: float | None
    low: float | None
    high: float | None
    values: tuple[float, ...]
    seconds: float


def summarize(results: Sequence[CellResult], metric: str) -> list[Summary]:
    """Return a metric's mean and interval over the seeds of every combination of settings, in order of the results.

    Raises:
        DataError: a run that did not diverge has no such metric.
    """
    groups: dict[tuple[tuple[str, str], ...], list[CellResult]] = {}
    for result in results:
        groups.setdefault(tuple(result.settings.items()), []).append(result)
    return [_summary(found, metric) for found in groups.values()]


def _summary(found: Sequence[CellResult], metric: str) -> Summary:
    good = [result for result in found if result.diverged is None]
    for result in good:
        if metric not in result.metrics:
            raise DataError(f"metric: no {metric} among {', '.join(result.metrics)}")
    values = [result.metrics[metric] for result in good]
    low, high = mean_interval(values) if len(values) > 1 else (None, None)
    return Summary(
        settings=found[0].settings,
        parameters=found[0].parameters,
        runs=len(good),
        diverged=len(found) - len(good),
        mean=float(np.mean(values)) if values else None,
        low=low,
        high=high,
        values=tuple(values),
        seconds=float(np.mean([result.seconds for result in found])),
    )


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of a mean: mean -+ t_{n-1, 0.975} s / sqrt(n), for at least two values."""
    from scipy import stats

    mean, half = np.mean(values), stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return float(mean - half), float(mean + half)


def pick(text: str, total: int) -> int:
    """Return the number, counted from 0, of the cell that `3/40` names, counted from 1.

    Raises:
        ConfigError: the text is no such pair, or the grid has another number of cells.
    """
    number, _, of = text.partition("/")
    require(number.isdecimal() and of.isdecimal(), "--cell", f"expected NUMBER/CELLS such as 3/{total}, got {text!r}")
    require(int(of) == total, "--cell", f"the grid has {total} cells, not {of}")
    require(1 <= int(number) <= total, "--cell", f"must be from 1 to {total}, got {number}")
    return int(number) - 1
