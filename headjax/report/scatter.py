"""Plots of quality against cost: models, sizes of converted models, and head importance on two data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from headjax.core.errors import DataError
from headjax.report import numbers
from headjax.report.curves import Points, axis_of_log
from headjax.report.style import INK, WIDTH, Plot, finished, legend_below, look, new_axes, new_figure, style, wrap


def trade_off(
    series: Mapping[str, Points],
    *,
    cost: str = "Parameters",
    metric: str = "Perplexity",
    better: Literal["lower", "higher"] = "lower",
    cost_format: numbers.Format = numbers.count,
    title: str = "Quality against cost",
    scale: Literal["linear", "log"] = "linear",
) -> Plot:
    """Cost and quality of models, one point a model; a series of several (one model at several sizes) is joined.

    Args:
        series: `(cost, value)` pairs by name.
        cost, metric: axis labels with units.
        better: which values of the metric are the better ones.
        cost_format: how the cost is written, one of `headjax.report.numbers`.
        title: heading of the plot.
        scale: of the vertical axis.

    Raises:
        DataError: no series, one without a point, a point that is not finite, or not positive on a logarithmic axis.
    """
    arrays = {name: np.asarray(points, dtype=float).reshape(-1, 2) for name, points in series.items()}
    if not arrays:
        raise DataError("series: none to draw")
    for name, points in arrays.items():
        if not len(points) or not np.isfinite(points).all():
            raise DataError(f"series[{name!r}]: needs points, all finite")
        if scale == "log" and np.any(points[:, 1] <= 0):
            raise DataError(f"series[{name!r}]: a logarithmic axis cannot show values of zero or less")
    handles: list[Any] = []
    written = numbers.tick(cost_format)
    with style():
        figure, axes = new_axes(title, cost, f"{metric}, {better} is better")
        for place, points in enumerate(arrays.values()):
            ordered = points[np.argsort(points[:, 0], kind="stable")]
            drawn = look(place).drawn | ({} if len(points) > 1 else {"linestyle": "none"})
            handles += axes.plot(*ordered.T, **drawn, linewidth=1.4, markersize=8)
        axes.margins(0.1)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value)))
        if scale == "log":
            axis_of_log(axes, "y")
        legend_below(figure, handles, list(arrays))
    said = "; ".join(
        f"{name} " + ", ".join(f"({cost_format(x)}, {numbers.significant(y)})" for x, y in points)
        for name, points in arrays.items()
    )
    return finished(figure, f"{title}: {metric} against {cost}. {said}.")


def importance_transfer(
    values: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    x_label: str,
    y_label: str,
    title: str = "Head importance on two data sets",
) -> Plot:
    """Importance of every head on one data set against another, with Pearson's r over all heads (Michel et al. 2019).

    Args:
        values: by head stack, importances of the same heads on the first and on the second data set.
        x_label, y_label: names of the two data sets, with the unit of importance.
        title: heading of the plot.

    Raises:
        DataError: no heads, two lists of different lengths, or a value that is not finite.
    """
    arrays: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, (first, second) in values.items():
        x, y = np.ravel(np.asarray(first, dtype=float)), np.ravel(np.asarray(second, dtype=float))
        if len(x) != len(y):
            raise DataError(f"values[{name!r}]: {len(x)} heads on the first data set, {len(y)} on the second")
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            raise DataError(f"values[{name!r}]: an importance is not finite")
        arrays[name] = (x, y)
    if not any(len(x) for x, _ in arrays.values()):
        raise DataError("values: no heads to draw")
    correlation = _pearson(*(np.concatenate(side) for side in zip(*arrays.values(), strict=True)))
    with style():
        figure, axes = new_axes(title, x_label, y_label, height=0.85 * WIDTH)
        handles = []
        for place, (x, y) in enumerate(arrays.values()):
            color, marker = look(place)[:2]
            handles.append(axes.scatter(x, y, s=42, color=color, marker=marker, alpha=0.75, linewidth=0))
        axes.text(0.03, 0.97, f"Pearson r = {correlation}", transform=axes.transAxes, va="top", color=INK)
        if len(arrays) > 1:
            legend_below(figure, handles, list(arrays))
    heads = sum(len(x) for x, _ in arrays.values())
    return finished(figure, f"{title}: scatter plot of {heads} heads, {y_label} against {x_label}, r = {correlation}.")


def _pearson(x: np.ndarray, y: np.ndarray) -> str:
    """Pearson's r = cov(x, y) / (std(x) std(y)) with two decimals, a dash where it is undefined."""
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return numbers.MISSING
    return f"{np.corrcoef(x, y)[0, 1]:.2f}"


def sharing_curves(
    panels: Mapping[str, Mapping[str, Points]],
    *,
    baseline: float,
    metric: str,
    cost: str = "Parameters",
    cost_format: numbers.Format = numbers.count,
    title: str = "Quality of converted models",
    same_scale: bool = False,
) -> Plot:
    """A metric against parameters or another cost, one panel a formulation, one line a way to convert.

    Args:
        panels: by formulation and by way, `(cost, value)` of each size.
        baseline: the original's value, drawn as a level line.
        metric: name of the metric.
        cost: label of the horizontal axis.
        cost_format: how the cost is written, one of `headjax.report.numbers`.
        title: heading of the plot.
        same_scale: whether all panels have one vertical axis, so that they can be compared.

    Raises:
        DataError: nothing to draw.
    """
    if not panels or not all(panels.values()):
        raise DataError("panels: none to draw")
    looks = {name: look(i) for i, name in enumerate(dict.fromkeys(n for panel in panels.values() for n in panel))}
    written = numbers.tick(cost_format)
    with style():
        figure = new_figure(height=1.0 + 2.3 * len(panels))
        all_axes = figure.subplots(len(panels), 1, sharex=True, sharey=same_scale, squeeze=False)[:, 0]
        for axes, (name, series) in zip(all_axes, panels.items(), strict=True):
            for way, points in series.items():
                x, y = zip(*sorted(points), strict=True)
                axes.plot(x, y, **looks[way].drawn)
            axes.axhline(baseline, color=INK, linewidth=1.3, linestyle=(0, (2, 2)), zorder=1)
            axes.set_title(name, fontsize=12, fontweight="normal")
            axes.set_ylabel(metric)
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.xaxis.set_major_formatter(lambda value, _: written(value))
        all_axes[-1].set_xlabel(cost)
        figure.suptitle(wrap(title, WIDTH), x=0.02, ha="left", fontweight="bold", fontsize=13, color=INK)
        handles = [Line2D([], [], **a.drawn) for a in looks.values()]
        handles.append(Line2D([], [], color=INK, linewidth=1.3, linestyle=(0, (2, 2))))
        legend_below(figure, handles, [*looks, f"original: {numbers.significant(baseline)}"])
    return finished(figure, f"{title}: {metric} against {cost}: {', '.join(panels)}.")
