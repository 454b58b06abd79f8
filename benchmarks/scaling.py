"""`headjax bench scaling`: time and memory of six operations as length, depth, heads and batch grow, one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.operations import NEW, OPERATIONS, READS_WEIGHTS_ALONE, SWEEPS, Operation, Shape
from benchmarks.result import BenchResult
from benchmarks.slopes import TOLERANCE, CostCurve
from headjax.core.progress import Progress, silent
from headjax.core.timing import seconds_in_turns
from headjax.report import numbers
from headjax.report.cost_curves import CostPoints, cost_curves
from headjax.report.style import Plot
from headjax.report.tables import Column, Table

WEIGHT_FACTORS = ("depth", "heads")
"""Factors that change the weights."""


class Study(NamedTuple):
    """Shapes to measure.

    Attributes:
        base: shape from which one factor at a time grows.
        factors: by factor, a field of `Shape`, its values; the first is the base's.
        turns: timed calls at each value.
        settle: calls before each timed one.
    """

    base: Shape
    factors: Mapping[str, tuple[int, ...]]
    turns: int = 5
    settle: int = 0

    def shapes(self, factor: str) -> list[Shape]:
        """Return the shapes of a factor's values, which differ in it alone."""
        return [self.base._replace(**{factor: value}) for value in self.factors[factor]]


SIZES: Mapping[str, Study] = {
    "short": Study(
        Shape(width=32, hidden=64, head_dim=8, heads=2, length=32, depth=2),
        {"length": (32, 64, 128), "depth": (2, 4, 8), "heads": (2, 4, 8), "batch": (1, 2, 4)},
        turns=3,
    ),
    "full": Study(
        Shape(),
        {"length": (128, 512, 2048), "depth": (6, 12, 24, 48), "heads": (4, 8, 16, 32), "batch": (1, 2, 4, 8, 16)},
    ),
    "large": Study(
        Shape(width=512, hidden=2048, head_dim=64, heads=8, vocabulary=32_000, batch=4),
        {
            "length": (128, 256, 512, 1024, 2048),
            "depth": (6, 12, 24, 48),
            "heads": (8, 16, 32, 64),
            "batch": (4, 8, 16, 32, 64),
        },
        settle=1,
    ),
}
"""Studies by name."""


def run(progress: Progress = silent, size: str = "full", study: Study | None = None) -> BenchResult:
    """Measure every operation at every value of every factor.

    Args:
        progress: shows the advance.
        size: name of a study in `SIZES`.
        study: a study of one's own instead.
    """
    study = study or SIZES[size]
    found: dict[str, dict[str, CostCurve]] = {name: {} for name in OPERATIONS}
    asked = [
        (name, factor)
        for factor in study.factors
        for name in OPERATIONS
        if factor in WEIGHT_FACTORS or name not in READS_WEIGHTS_ALONE
    ]
    bases: dict[str, Operation] = {}
    with progress("measuring", len(asked), "curve") as bar:
        for done, (name, factor) in enumerate(asked, 1):
            found[name][factor] = measure_curve(study, name, factor, bases)
            bar(done, {})
    curves = {name: by_factor for name, by_factor in found.items() if by_factor}
    ours = {
        "base": study.base._asdict(),
        "turns": study.turns,
        "curves": {name: {f: curve.to_json() for f, curve in by.items()} for name, by in curves.items()},
    }
    peer = {name: {f: curve.predicted for f, curve in by.items()} for name, by in curves.items()}
    steepest = curves["train step"]["length"]
    ratio = steepest.measured.median / steepest.predicted
    return BenchResult(ours, peer, ratio, (table(ours),), plot=plot(ours))


def measure_curve(study: Study, name: str, factor: str, bases: dict[str, Operation]) -> CostCurve:
    """Return the costs of an operation over a factor; the shapes are timed in turns.

    Args:
        study: the shapes.
        name: the operation.
        factor: the factor that grows.
        bases: operations on the base, by name, which all factors share; one that is missing is added.
    """
    base, *grown = study.shapes(factor)
    if name not in bases:
        bases[name] = OPERATIONS[name](base)
    operations = {str(getattr(base, factor)): bases[name]}
    operations |= {str(getattr(shape, factor)): OPERATIONS[name](shape) for shape in grown}
    before = {value: each.before for value, each in operations.items() if each.before is not None}
    seconds = seconds_in_turns(
        {value: each.call for value, each in operations.items()},
        repeats=study.turns,
        settle=study.settle,
        before=before,
    )
    return CostCurve(
        study.factors[factor],
        tuple(_per_step(operations[value], turns) for value, turns in seconds.items()),
        tuple(each.flops for each in operations.values()),
        tuple(each.memory for each in operations.values()),
    )


def _per_step(operation: Operation, seconds: list[float]) -> tuple[float, ...]:
    return tuple(each / operation.steps for each in seconds)


def curves_of(ours: Mapping[str, Any]) -> dict[str, dict[str, CostCurve]]:
    """Return the curves of the benchmark's JSON data, by operation and factor."""
    return {
        name: {factor: CostCurve.from_json(data) for factor, data in by.items()} for name, by in ours["curves"].items()
    }


def verdict(curve: CostCurve) -> str:
    """Return in a few words whether the time grows as the operations do."""
    if not curve.departs:
        return "as counted"
    return "faster than counted" if curve.measured.median > curve.predicted else "slower than counted"


def table(ours: Mapping[str, Any]) -> Table:
    """Return the slopes of all curves, measured and predicted."""
    columns = (
        Column("Operation"),
        Column("Factor"),
        Column("Time from", numbers.duration),
        Column("to", numbers.duration),
        Column("Slope", numbers.fixed(2)),
        Column("Quartiles"),
        Column("By FLOPs", numbers.fixed(2)),
        Column("Grows"),
        Column("Memory from", numbers.size),
        Column("to", numbers.size),
        Column("Slope", numbers.fixed(2)),
    )
    rows = [
        (
            name,
            f"{factor} {curve.values[0]} to {curve.values[-1]}",
            curve.medians[0],
            curve.medians[-1],
            curve.measured.median,
            f"{curve.measured.low:.2f}, {curve.measured.high:.2f}",
            curve.predicted,
            verdict(curve),
            curve.memory[0],
            curve.memory[-1],
            curve.memory_slope,
        )
        for name, by in curves_of(ours).items()
        for factor, curve in by.items()
    ]
    base = Shape(**ours["base"])
    notes = (
        f"Decoder of width {base.width}, feed-forward {base.hidden}, heads of {base.head_dim}, float32; base: length "
        f"{base.length}, depth {base.depth}, {base.heads} heads, batch {base.batch}. One factor grows, no other.",
        f"Slope a of cost = c * factor^a, least squares on logarithms, one of each of {ours['turns']} turns: median "
        "and quartiles. By FLOPs: that of headjax's own counts of matrix products, attention's quadratic part "
        "included.",
        f"Grows faster or slower than counted: by more than {TOLERANCE} and more than its quartiles. Memory: arguments "
        "and temporaries of the largest compiled program (XLA's memory analysis).",
        "Importance and ablation: of every head. Conversion: multi-head to collaborative at half of the size, "
        f"{SWEEPS} rounds; it reads weights alone. Decode step: mean of {NEW}.",
    )
    return Table(columns, rows, title="Cost curves", notes=notes)


def plot(ours: Mapping[str, Any]) -> Plot:
    """Return the curves as small multiples, see `headjax.report.cost_curves`."""
    points = {
        name: {
            factor: CostPoints(curve.values, curve.medians, curve.flops, curve.memory, curve.departs)
            for factor, curve in by.items()
        }
        for name, by in curves_of(ours).items()
    }
    return cost_curves(points, title="Cost as one factor grows and all others stay")
