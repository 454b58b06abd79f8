"""The one format of raw results: a number a line, in results/measurements/EXPERIMENT.csv."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent / "measurements"


class Row(NamedTuple):
    """A measured number.

    Attributes:
        setting: What tells it from others of its experiment, such as a target of conversion or a grid's settings.
        seed: Of the trained model; empty where one model was measured.
        draw: Of calibration examples, or of a repetition.
        order: Of removal.
        share: Of heads removed, or of parameters kept.
        repair: Of a pruned model, or variant of a converted one.
        head: `stack/layer/head`.
        metric: What was measured. "X change" is the model's X less the original's on the same examples, "X gain" less
            that of the same removal without a repair.
        value: The number.
        low, high: Its 95 % interval over examples.
        p: P-value of a paired test on the examples.
        seconds: Processor time that the number, and others with it, took.
    """

    setting: str = ""
    seed: str = ""
    draw: str = ""
    order: str = ""
    share: str = ""
    repair: str = ""
    head: str = ""
    metric: str = ""
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    seconds: float = math.nan


NUMBERS = ("value", "low", "high", "p", "seconds")


@cache
def read(experiment: str) -> tuple[Row, ...]:
    """Return the raw results of an experiment."""
    with (FOLDER / f"{experiment}.csv").open(newline="", encoding="utf-8") as file:
        return tuple(Row(**{**row, **{name: float(row[name] or "nan") for name in NUMBERS}}) for row in _lines(file))


def _lines(file: Iterable[str]) -> Iterable[dict[str, Any]]:
    return csv.DictReader(file, strict=True)


def write(experiment: str, rows: Iterable[Row], folder: Path = FOLDER) -> Path:
    """Write the raw results of an experiment, numbers with six digits."""
    path = folder / f"{experiment}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(Row._fields)
        for row in rows:
            lines.writerow(_written(value) for value in row)
    return path


def _written(value: object) -> object:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return value


def select(rows: Iterable[Row], where: Mapping[str, str]) -> list[Row]:
    """Return the rows whose columns have these values."""
    return [row for row in rows if all(getattr(row, column) == value for column, value in where.items())]
