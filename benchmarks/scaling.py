"""`python -m benchmarks scaling`: time and memory of six operations as length, depth, heads and batch grow."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from benchmarks.operations import NEW, OPERATIONS, SWEEPS, Operation, Shape
from benchmarks.result import BenchResult
from headjax.core import numbers
from headjax.core.progress import Progress, silent
from headjax.core.timing import Timing, seconds_in_turns
from headjax.report.drawing import INK, Axis, Plot, legend_below, look, new_figure, scaled, style
from headjax.report.tables import Column, Table

PREDICTED: Mapping[str, Any] = {"linestyle": (0, (2, 1.5)), "linewidth": 1.4}

TOLERANCE = 0.15
"""Difference of a measured slope from the predicted one from which on an operation departs from theory: a factor of
1.23 in cost where the factor grows fourfold."""


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


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return a of y = c x^a by least squares on log x and log y."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


class CostCurve(NamedTuple):
    """Costs of an operation as one factor grows and all others stay.

    Attributes:
        values: values of the factor, ascending.
        seconds: by value, the seconds of each turn; every turn has one call at each value.
        flops: by value, the FLOPs that the program is counted to take.
        memory: by value, bytes of the compiled program: arguments and temporaries.
    """

    values: Sequence[int]
    seconds: Sequence[Sequence[float]]
    flops: Sequence[float]
    memory: Sequence[int]

    @property
    def measured(self) -> Timing:
        """Median and quartiles of the slopes of the time, one of each turn."""
        return Timing.of([slope(self.values, turn) for turn in zip(*self.seconds, strict=True)])

    @property
    def predicted(self) -> float:
        """Slope of the FLOPs over the same values."""
        return slope(self.values, self.flops)

    @property
    def medians(self) -> list[float]:
        """Median seconds at each value."""
        return [statistics.median(turns) for turns in self.seconds]

    @property
    def departs(self) -> bool:
        """Whether the time grows otherwise than the FLOPs, by more than `TOLERANCE` and more than its spread."""
        measured, predicted = self.measured, self.predicted
        outside = not measured.low <= predicted <= measured.high
        return outside and abs(measured.median - predicted) > TOLERANCE

    @property
    def verdict(self) -> str:
        """Whether the time grows as the FLOPs do, in a few words."""
        if not self.departs:
            return "as counted"
        return "faster than counted" if self.measured.median > self.predicted else "slower than counted"

    def to_json(self) -> dict[str, Any]:
        """Return the curve and its slopes as JSON data."""
        median, low, high, _ = self.measured
        return self._asdict() | {
            "slope": {"median": median, "low": low, "high": high},
            "predicted_slope": self.predicted,
            "memory_slope": slope(self.values, self.memory),
            "departs": self.departs,
        }


def run(progress: Progress = silent, size: str = "full", study: Study | None = None) -> BenchResult:
    """Measure every operation at every value of every factor.

    Args:
        progress: shows the advance.
        size: name of a study in `SIZES`.
        study: a study of one's own instead.
    """
    study = study or SIZES[size]
    # Conversion reads weights alone, which neither length nor batch changes.
    asked = [
        (name, factor)
        for factor in study.factors
        for name in OPERATIONS
        if factor in ("depth", "heads") or name != "conversion"
    ]
    curves: dict[str, dict[str, CostCurve]] = {name: {} for name in OPERATIONS}
    bases: dict[str, Operation] = {}
    with progress("measuring", len(asked), "curve") as bar:
        for done, (name, factor) in enumerate(asked, 1):
            curves[name][factor] = measure_curve(study, name, factor, bases)
            bar(done, {})
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
    values = study.factors[factor]
    if name not in bases:
        bases[name] = OPERATIONS[name](study.base)
    grown = (OPERATIONS[name](study.base._replace(**{factor: value})) for value in values[1:])
    operations = dict(zip(map(str, values), (bases[name], *grown), strict=True))
    seconds = seconds_in_turns(
        {value: each.call for value, each in operations.items()},
        repeats=study.turns,
        settle=study.settle,
        before={value: each.before for value, each in operations.items() if each.before is not None},
    )
    return CostCurve(
        values,
        [[second / operations[value].steps for second in turns] for value, turns in seconds.items()],
        [each.flops for each in operations.values()],
        [each.memory for each in operations.values()],
    )


def curves_of(ours: Mapping[str, Any]) -> dict[str, dict[str, CostCurve]]:
    """Return the curves of the benchmark's JSON data, by operation and factor."""
    return {
        name: {factor: CostCurve(*(data[field] for field in CostCurve._fields)) for factor, data in by.items()}
        for name, by in ours["curves"].items()
    }


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
    rows = []
    for name, by in curves_of(ours).items():
        for factor, curve in by.items():
            grows, seconds, held = curve.measured, curve.medians, curve.memory
            slopes = (grows.median, f"{grows.low:.2f}, {grows.high:.2f}", curve.predicted, curve.verdict)
            memory = (held[0], held[-1], slope(curve.values, held))
            what = f"{factor} {curve.values[0]} to {curve.values[-1]}"
            rows.append((name, what, seconds[0], seconds[-1], *slopes, *memory))
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
    """Draw two panels an operation, time and memory, each relative to the first value; both axes are logarithmic.

    The cost that is 1 stands in the panel, that of the first factor's curve. The time that the FLOPs predict is dashed.
    """
    curves = curves_of(ours)
    title = "Cost as one factor grows and all others stay"
    said = [f"{name}: {'; '.join(_growth(factor, one) for factor, one in by.items())}." for name, by in curves.items()]
    with style():
        figure = new_figure(9.0, 1.3 + 2.1 * len(curves))
        grid = figure.subplots(len(curves), 2, sharex=True, squeeze=False)
        for (left, right), (name, by) in zip(grid, curves.items(), strict=True):
            for place, (factor, curve) in enumerate(by.items()):
                form = look(place)
                left.plot(*_grown(curve, curve.medians), **form, label=factor)
                left.plot(*_grown(curve, curve.flops), color=form["color"], **PREDICTED)
                right.plot(*_grown(curve, curve.memory), **form)
            first = next(iter(by.values()))
            departing = ", ".join(factor for factor, curve in by.items() if curve.departs)
            left.set_title(f"departs: {departing}" * bool(departing), loc="right", fontsize=11, fontweight="normal")
            for axes, kind, unit in (
                (left, "time", numbers.duration(first.medians[0])), (right, "memory", numbers.size(first.memory[0]))
            ):  # fmt: skip
                axes.set_title(name, fontsize=12)
                axes.text(0.03, 0.96, f"1 = {unit}", transform=axes.transAxes, va="top", fontsize=11)
                axes.set_xscale("log", base=2)
                axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                scaled(axes, Axis(f"{kind}, times first", scale="log"))
        for axes in grid[-1]:
            axes.set_xlabel("factor, times its first value")
        figure.suptitle(title, x=0.02, ha="left", fontweight="bold", fontsize=13)
        handles = {
            label: handle
            for axes in grid[:, 0]
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        handles["by count of FLOPs"] = Line2D([], [], color=INK, **PREDICTED)
        legend_below(figure, list(handles.values()), list(handles))
    return Plot(figure, f"{title}. {' '.join(said)}")


def _grown(curve: CostCurve, costs: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(curve.values) / curve.values[0], np.array(costs) / costs[0]


def _growth(factor: str, curve: CostCurve) -> str:
    time, work = (costs[-1] / costs[0] for costs in (curve.medians, curve.flops))
    grown = f"{factor} {curve.values[0]} to {curve.values[-1]}: time {time:.3g} times, work {work:.3g} times"
    return grown + (", departs" if curve.departs else "")
