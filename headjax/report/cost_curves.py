"""Cost curves: time and memory of operations as one factor grows, beside the growth that theory predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from headjax.core.errors import DataError
from headjax.report import numbers
from headjax.report.curves import axis_of_log
from headjax.report.style import INK, PALETTE, Look, Plot, finished, legend_below, look, new_figure, style, wrap

WIDTH = 9.0
"""Inches of the plot, which has two columns."""
THEORY = (0, (2, 1.5))
"""Dashes of the predicted lines."""


class CostPoints(NamedTuple):
    """Costs of an operation by the values of one factor, ascending.

    Attributes:
        values: values of the factor.
        seconds: measured time at each.
        work: predicted work at each, in any unit.
        memory: bytes at each.
        departs: whether the time grows otherwise than the work.
    """

    values: Sequence[float]
    seconds: Sequence[float]
    work: Sequence[float]
    memory: Sequence[float]
    departs: bool


def cost_curves(operations: Mapping[str, Mapping[str, CostPoints]], *, title: str = "Cost curves") -> Plot:
    """Two panels an operation, time and memory, each relative to the first value; both axes are logarithmic.

    The cost that is 1 stands in the panel, that of the first factor's curve.

    A factor has one colour and marker; the time that the work predicts is dashed in the same colour. The factors whose
    time departs from the prediction stand above the panel.

    Args:
        operations: costs by operation and factor.
        title: heading of the plot.

    Raises:
        DataError: nothing to draw, or a cost that is not positive.
    """
    if not operations or not all(operations.values()):
        raise DataError("operations: none to draw")
    for name, by_factor in operations.items():
        for factor, points in by_factor.items():
            if np.min([points.values, points.seconds, points.work, points.memory]) <= 0:
                raise DataError(f"operations[{name!r}][{factor!r}]: a logarithmic axis cannot show zero or less")
    factors = list(dict.fromkeys(factor for by_factor in operations.values() for factor in by_factor))
    looks = {factor: look(place) for place, factor in enumerate(factors)}
    with style():
        figure = new_figure(width=WIDTH, height=1.3 + 2.1 * len(operations))
        panels = figure.subplots(len(operations), 2, sharex=True, squeeze=False)
        for (time, memory), (name, by_factor) in zip(panels, operations.items(), strict=True):
            for factor, points in by_factor.items():
                grown = np.asarray(points.values) / points.values[0]
                _theory(time, grown, points.work, looks[factor])
                _measured(time, grown, points.seconds, looks[factor])
                _measured(memory, grown, points.memory, looks[factor])
            first = next(iter(by_factor.values()))
            departing = [factor for factor, points in by_factor.items() if points.departs]
            said = f"departs: {', '.join(departing)}" if departing else ""
            time.set_title(said, loc="right", fontsize=11, fontweight="normal", color=PALETTE[1])
            _label(time, name, "time, times first", numbers.duration(first.seconds[0]))
            _label(memory, name, "memory, times first", numbers.size(first.memory[0]))
        for axes in panels[-1]:
            _factors(axes, operations)
        figure.suptitle(wrap(title, WIDTH), x=0.02, ha="left", fontweight="bold", fontsize=14, color=INK)
        handles = [Line2D([], [], color=each.color, marker=each.marker) for each in looks.values()]
        handles.append(Line2D([], [], color=INK, linestyle=THEORY, linewidth=1.4))
        legend_below(figure, handles, [*looks, "by count of operations"])
    return finished(figure, f"{title}. {_said(operations)}")


def _measured(axes: Axes, grown: np.ndarray, costs: Sequence[float], shown: Look) -> None:
    relative = np.asarray(costs, dtype=float) / costs[0]
    axes.plot(grown, relative, color=shown.color, marker=shown.marker, linewidth=1.8)


def _theory(axes: Axes, grown: np.ndarray, work: Sequence[float], shown: Look) -> None:
    relative = np.asarray(work, dtype=float) / work[0]
    axes.plot(grown, relative, color=shown.color, linestyle=THEORY, linewidth=1.4)


def _label(axes: Axes, title: str, axis: str, first: str) -> None:
    axis_of_log(axes, "y")
    axes.set_ylabel(axis)
    axes.set_title(title, fontsize=12)
    axes.text(0.03, 0.95, f"1 = {first}", transform=axes.transAxes, va="top", fontsize=11, color=INK)


def _factors(axes: Axes, operations: Mapping[str, Mapping[str, CostPoints]]) -> None:
    """Mark powers of two on the shared horizontal axis."""
    axes.set_xscale("log", base=2)
    most = max(points.values[-1] / points.values[0] for by in operations.values() for points in by.values())
    axes.set_xticks([2.0**power for power in range(int(np.log2(most)) + 1)])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("factor, times its first value")


def _growth(costs: Sequence[float]) -> str:
    return f"{costs[-1] / costs[0]:.3g}"


def _said(operations: Mapping[str, Mapping[str, CostPoints]]) -> str:
    """Return the plot in words."""
    lines = []
    for name, by_factor in operations.items():
        parts = [
            f"{factor} {points.values[0]:g} to {points.values[-1]:g}: time {_growth(points.seconds)} times, "
            f"work {_growth(points.work)} times" + (", departs" if points.departs else "")
            for factor, points in by_factor.items()
        ]
        lines.append(f"{name}: {'; '.join(parts)}.")
    return " ".join(lines)
