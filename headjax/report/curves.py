"""Lines with bands: any values against any others, and a metric against the heads that are removed.

Both raise `DataError` where there is nothing to draw, a series has no finite point, or an axis cannot show a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from headjax.core import numbers
from headjax.core.errors import DataError
from headjax.report.style import INK, WIDTH, Plot, legend_below, look, new_figure, style, wrap

Points = Sequence[tuple[float, float]]
"""`(x, y)` pairs; a y that is not finite (a run that diverged) leaves a gap."""

Scale = Literal["linear", "log"]

LEVEL: Mapping[str, Any] = {"color": INK, "linewidth": 1.3, "linestyle": (0, (2, 2)), "zorder": 1}


class Axis(NamedTuple):
    """An axis: its label, its numbers, and where it ends."""

    label: str
    format: numbers.Format | None = None
    scale: Scale = "linear"
    limits: tuple[float, float] | None = None


class Curve(NamedTuple):
    """Points of increasing x, repeats of the same x reduced: `mean`, `low` and `high`, `[points]` each."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def draw(
    series: Mapping[str, Points],
    *,
    x: Axis,
    y: Axis,
    title: str,
    alt: str,
    level: tuple[str, float] | None = None,
) -> Plot:
    """Draw series with one legend."""
    if not series:
        raise DataError("curves: none to draw")
    with style():
        figure = new_figure(WIDTH, 4.2)
        axes = figure.subplots()
        lines: dict[str, Line2D] = {}
        for place, (name, points) in enumerate(series.items()):
            entry, curve = look(place), reduced(f"curves[{name!r}]", points, y.scale)
            if np.any(curve.high > curve.low):
                axes.fill_between(curve.x, curve.low, curve.high, color=entry.color, alpha=0.18, linewidth=0)
            markers = max(1, len(curve.x) // 10)
            (lines[name],) = axes.plot(curve.x, curve.mean, **entry.drawn, markevery=markers)
        if level is not None:
            lines[f"{level[0]}: {(y.format or numbers.significant)(level[1])}"] = axes.axhline(level[1], **LEVEL)
        scaled(axes, y)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=(1, 2, 2.5, 5, 10)))
        axes.xaxis.set_major_formatter(_written(x.format or numbers.significant))
        axes.set(xlabel=x.label, xlim=x.limits, title=wrap(title, WIDTH))
        legend_below(figure, list(lines.values()), list(lines))
    return Plot(figure, alt)


def scaled(axes: Axes, y: Axis) -> None:
    """Give axes their vertical scale, numbers and label.

    A logarithmic one has plain numbers at 1, 2 and 5, over four decades at powers of ten alone.
    """
    if y.scale == "log":
        axes.set_yscale("log")
        low, high = axes.yaxis.get_data_interval()
        logarithmic = LogLocator(subs=(1, 2, 5) if high < 1e4 * low else (1,))
        axes.yaxis.set_major_locator(logarithmic if high > 20 * low else MaxNLocator(6))
        axes.yaxis.set_major_formatter(_written(numbers.count))
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif y.format is not None:
        axes.yaxis.set_major_formatter(_written(y.format))
    axes.set(ylim=y.limits, ylabel=wrap(y.label, 3.0, 11.0))


def _written(form: numbers.Format) -> FuncFormatter:
    written = numbers.tick(form)
    return FuncFormatter(lambda value, _: written(value))


def reduced(field: str, points: Points, scale: Scale = "linear") -> Curve:
    """Return points by increasing x, repeats of the same x reduced."""
    pairs = np.asarray(points, dtype=float).reshape(-1, 2)
    if not np.isfinite(pairs).all(axis=1).any():
        raise DataError(f"{field}: no finite points to draw")
    if not np.isfinite(pairs[:, 0]).all():
        raise DataError(f"{field}: a horizontal position is not finite")
    if scale != "linear" and np.any(pairs[:, 1] <= 0):
        raise DataError(f"{field}: a logarithmic axis cannot show values of zero or less")
    x, place = np.unique(pairs[:, 0], return_inverse=True)
    groups = [pairs[place == index, 1] for index in range(len(x))]
    values = np.array([(np.mean(group), np.min(group), np.max(group)) for group in groups])
    values[~np.isfinite(values).all(axis=1)] = np.nan
    return Curve(x, *values.T)


def spans(curves: Mapping[str, Points]) -> str:
    """Return in words from where to where each curve goes."""
    means = {name: reduced(f"curves[{name!r}]", points).mean for name, points in curves.items()}
    ends = {name: mean[np.isfinite(mean)][[0, -1]] for name, mean in means.items()}
    return "; ".join(
        f"{name} goes from {numbers.significant(first)} to {numbers.significant(last)}"
        for name, (first, last) in ends.items()
    )


def line_plot(
    curves: Mapping[str, Points],
    *,
    title: str,
    x_label: str,
    y_label: str,
    scale: Scale = "linear",
    x_format: numbers.Format = numbers.count,
) -> Plot:
    """Any values against any others, one marked line a series."""
    return draw(
        curves,
        x=Axis(x_label, x_format),
        y=Axis(y_label, scale=scale),
        title=title,
        alt=f"{title}: line plot of {y_label} against {x_label}. {spans(curves)}.",
    )


def pruning_curves(
    curves: Mapping[str, Points],
    *,
    metric: str = "Perplexity",
    better: Literal["lower", "higher"] = "lower",
    baseline: float | None = None,
    title: str = "Quality against heads removed",
    scale: Scale = "linear",
) -> Plot:
    """A metric against the share of heads removed, one curve an order of removal."""
    for name, points in curves.items():
        if any(x < 0 or x > 1 for x, _ in points):
            raise DataError(f"curves[{name!r}]: fractions removed must lie between 0 and 1")
    level = None if baseline is None or not np.isfinite(baseline) else ("all heads", baseline)
    return draw(
        curves,
        x=Axis(
            "Heads removed (% of all heads)", lambda share: numbers.percent(share).rstrip("%"), limits=(-0.02, 1.02)
        ),
        y=Axis(f"{metric}, {better} is better", scale=scale),
        title=title,
        alt=f"{title}: line plot of {metric} against the share of heads removed, 0 to 100 %. {spans(curves)}.",
        level=level,
    )
