"""The one function that draws lines, bands and points, and a plain use of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from headjax.core.errors import DataError
from headjax.report import numbers
from headjax.report.style import INK, PALETTE, WIDTH, Look, Plot, legend_below, look, new_figure, style, wrap

Points = Sequence[tuple[float, float]]
"""`(x, y)` pairs; a y that is not finite (a run that diverged) leaves a gap."""

Scale = Literal["linear", "log", "doubling"]
"""Scale of an axis; `doubling` is logarithmic with marks at powers of two."""

PREDICTED: Mapping[str, Any] = {"linestyle": (0, (2, 1.5)), "linewidth": 1.4}
LEVEL: Mapping[str, Any] = {"color": INK, "linewidth": 1.3, "linestyle": (0, (2, 2))}


class Axis(NamedTuple):
    """An axis.

    Attributes:
        label: what it shows, with the unit.
        format: how its values are written, one of `headjax.report.numbers`; None is Matplotlib's way.
        scale: its scale.
        limits: its ends; None is around the data.
    """

    label: str
    format: numbers.Format | None = None
    scale: Scale = "linear"
    limits: tuple[float, float] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
    """Content of one pair of axes. A name has the same look in all panels of a plot.

    Attributes:
        series: points by name.
        y: the vertical axis.
        mode: `mean` joins the means of points with the same x and draws a band from their smallest to their largest;
            `joined` joins all points in the order of x.
        predicted: dashed lines in the look of a name.
        level: a value that is drawn as a level line.
        title, aside: what stands above, at the left and at the right.
        note: what stands in its upper left corner.
        field: what errors call the series.
    """

    series: Mapping[str, Points]
    y: Axis
    mode: Literal["mean", "joined"] = "mean"
    predicted: Mapping[str, Points] = dataclasses.field(default_factory=dict)
    level: float | None = None
    title: str = ""
    aside: str = ""
    note: str = ""
    field: str = "curves"


class Curve(NamedTuple):
    """Points of increasing x, repeats of the same x reduced: `mean`, `low` and `high`, `[points]` each."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def ends(self) -> tuple[float, float]:
        """Return the first and the last finite mean."""
        finite = self.mean[np.isfinite(self.mean)]
        return float(finite[0]), float(finite[-1])


def draw(
    rows: Sequence[Sequence[Panel]],
    *,
    x: Axis,
    title: str,
    alt: str,
    width: float = WIDTH,
    height: float = 4.2,
    legend: Iterable[tuple[str, Mapping[str, Any]]] = (),
) -> Plot:
    """Draw panels with one horizontal axis and one legend.

    Args:
        rows: the panels by row.
        x: the horizontal axis.
        title: heading, above the only panel or above all; without one the panels' titles stand alone.
        alt: the plot in words.
        width, height: inches.
        legend: its further entries: a label, and arguments of Matplotlib's `Line2D`.

    Raises:
        DataError: a panel without series, a series without a finite point, or a value that its axis cannot show.
    """
    panels = [panel for row in rows for panel in row]
    if not panels or not all(panel.series for panel in panels):
        raise DataError(f"{panels[0].field if panels else 'panels'}: none to draw")
    names = dict.fromkeys(name for panel in panels for name in panel.series)
    looks = {name: look(place) for place, name in enumerate(names)}
    with style():
        figure = new_figure(width, height)
        grid = figure.subplots(len(rows), len(rows[0]), sharex=True, squeeze=False)
        for axes, panel in zip(grid.flat, panels, strict=True):
            _fill(axes, panel, looks)
        for place, axes in enumerate(grid.flat):
            _horizontal(axes, x, labelled=place >= len(panels) - len(rows[0]))
        if len(panels) == 1 and title:
            grid[0, 0].set_title(wrap(title, width))
        elif title:
            figure.suptitle(wrap(title, width), x=0.02, ha="left", fontweight="bold", fontsize=13, color=INK)
        joined = {name for p in panels for name, points in p.series.items() if not _is_alone(p, points)}
        handles = [Line2D([], [], **_drawn(entry, name not in joined)) for name, entry in looks.items()]
        more = dict(legend)
        handles += [Line2D([], [], **arguments) for arguments in more.values()]
        if len(handles) > 1 or joined:
            legend_below(figure, handles, [*looks, *more])
    return Plot(figure, alt)


def _is_alone(panel: Panel, points: Points) -> bool:
    return panel.mode == "joined" and len(points) == 1


def _drawn(entry: Look, alone: bool) -> dict[str, Any]:
    return entry.drawn | ({"linestyle": "none"} if alone else {})


def _fill(axes: Axes, panel: Panel, looks: Mapping[str, Look]) -> None:
    scale = panel.y.scale
    for name, points in panel.predicted.items():
        curve = reduced(f"{panel.field}[{name!r}]", points, scale)
        axes.plot(curve.x, curve.mean, color=looks[name].color, **PREDICTED)
    for name, points in panel.series.items():
        _series(axes, panel, f"{panel.field}[{name!r}]", points, looks[name])
    if panel.level is not None:
        axes.axhline(panel.level, **LEVEL, zorder=1)
    _vertical(axes, panel.y)
    axes.set_title(panel.title, fontsize=12)
    axes.set_title(panel.aside, loc="right", fontsize=11, fontweight="normal", color=PALETTE[1])
    axes.text(0.03, 0.96, panel.note, transform=axes.transAxes, va="top", fontsize=11, color=INK)


def _series(axes: Axes, panel: Panel, field: str, points: Points, entry: Look) -> None:
    if panel.mode == "mean":
        curve = reduced(field, points, panel.y.scale)
        if np.any(curve.high > curve.low):
            axes.fill_between(curve.x, curve.low, curve.high, color=entry.color, alpha=0.18, linewidth=0)
        axes.plot(curve.x, curve.mean, **entry.drawn, markevery=max(1, len(curve.x) // 10))
        return
    pairs = np.asarray(points, dtype=float).reshape(-1, 2)
    if not len(pairs) or not np.isfinite(pairs).all():
        raise DataError(f"{field}: needs points, all finite")
    reduced(field, points, panel.y.scale)
    ordered = pairs[np.argsort(pairs[:, 0], kind="stable")]
    axes.plot(*ordered.T, **_drawn(entry, _is_alone(panel, points)), linewidth=1.4, markersize=8)
    axes.margins(0.1)


def _vertical(axes: Axes, y: Axis) -> None:
    if y.scale == "log":
        _logarithmic(axes)
    elif y.format is not None:
        axes.yaxis.set_major_formatter(_written(y.format))
    if y.limits is not None:
        axes.set_ylim(y.limits)
    axes.set_ylabel(wrap(y.label, 3.0, 11.0))


def _horizontal(axes: Axes, x: Axis, *, labelled: bool) -> None:
    if x.scale == "doubling":
        axes.set_xscale("log", base=2)
        most = max(np.max(line.get_xdata()) for line in axes.get_lines())
        axes.set_xticks([2.0**power for power in range(int(np.log2(most)) + 1)])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=(1, 2, 2.5, 5, 10)))
    if x.format is not None:
        axes.xaxis.set_major_formatter(_written(x.format))
    if x.limits is not None:
        axes.set_xlim(x.limits)
    axes.set_xlabel(x.label if labelled else "")


def _logarithmic(axes: Axes) -> None:
    """Make the vertical axis logarithmic, with numbers at 1, 2 and 5; over four decades at powers of ten alone."""
    axes.set_yscale("log")
    low, high = axes.yaxis.get_data_interval()
    logarithmic = LogLocator(subs=(1, 2, 5) if high < 1e4 * low else (1,))
    axes.yaxis.set_major_locator(logarithmic if high > 20 * low else MaxNLocator(6))
    axes.yaxis.set_major_formatter(_written(numbers.count))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _written(form: numbers.Format) -> FuncFormatter:
    written = numbers.tick(form)
    return FuncFormatter(lambda value, _: written(value))


def reduced(field: str, points: Points, scale: Scale = "linear") -> Curve:
    """Return points by increasing x, repeats of the same x reduced.

    Raises:
        DataError: no finite point, a position that is not finite, or a value that a logarithmic axis cannot show.
    """
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
    ends = {name: reduced(f"curves[{name!r}]", points).ends() for name, points in curves.items()}
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
    scale: Literal["linear", "log"] = "linear",
    x_format: numbers.Format = numbers.count,
) -> Plot:
    """Any values against any others, one marked line a series.

    Args:
        curves: `(x, y)` by name; pairs of the same x are repeats (seeds): the line goes through their mean and a band
            reaches from the smallest to the largest.
        title: heading of the plot.
        x_label, y_label: axis labels with units.
        scale: of the vertical axis.
        x_format: how values of x are written, one of `headjax.report.numbers`.

    Raises:
        DataError: no curves, a curve without a finite point, or a value that a logarithmic axis cannot show.
    """
    return draw(
        [[Panel(series=curves, y=Axis(y_label, scale=scale))]],
        x=Axis(x_label, x_format),
        title=title,
        alt=f"{title}: line plot of {y_label} against {x_label}. {spans(curves)}.",
    )
