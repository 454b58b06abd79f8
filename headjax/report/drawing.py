"""The style of plots, with colours for colour-blind readers, too; and lines with bands, any values against others."""

from __future__ import annotations

import contextlib
import io
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from headjax.core import numbers
from headjax.core.errors import DataError

INK = "#1f2328"
MUTED = "#6e7781"
PAPER = "#fefefe"
"""Text, secondary marks and background."""

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9")
"""Okabe and Ito's colours (Color Universal Design, 2008) less black and yellow, which a background can hide."""

SEQUENTIAL = "cividis"
DIVERGING = "PuOr_r"
"""Colour maps for values of one sign and of two; both read the same with every kind of colour blindness."""

WIDTH = 5.6
"""Inches of an ordinary plot: small enough that its text is readable on a phone."""

STEPS = (1, 2, 2.5, 5, 10)
"""Distances of marks on an axis, times a power of ten."""

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1)), (0, (8, 2)))


class Plot(NamedTuple):
    """A finished plot."""

    figure: Figure
    alt: str

    def svg(self) -> str:
        """The plot as an SVG document."""
        return self._save("svg").decode()

    def png(self, dpi: int = 200) -> bytes:
        """The plot as a PNG file of this many pixels an inch."""
        return self._save("png", dpi)

    def _repr_png_(self) -> bytes:
        """Return the picture that a notebook shows."""
        return self.png(dpi=100)

    def _save(self, form: str, dpi: int = 200) -> bytes:
        buffer = io.BytesIO()
        with style():
            self.figure.savefig(buffer, format=form, dpi=dpi)
        return buffer.getvalue()


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Matplotlib's defaults plus this style, in place of the user's own settings, which come back at the end."""
    sheet = Path(__file__).with_name("headjax.mplstyle")
    with matplotlib.style.context(sheet, after_reset=True), warnings.catch_warnings():
        # A token in a script the font lacks prints as a box, which is no reason to stop.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def look(index: int) -> dict[str, Any]:
    """How Matplotlib draws the series at this place; after six, colours come again with other markers and dashes."""
    cycle, place = divmod(index, len(PALETTE))
    return {
        "color": PALETTE[place],
        "linestyle": _DASHES[(place + cycle) % len(_DASHES)],
        "marker": _MARKERS[(place + cycle) % len(_MARKERS)],
        "markerfacecolor": PAPER if cycle % 2 else PALETTE[place],
        "markeredgewidth": 1.2,
    }


def new_figure(width: float = WIDTH, height: float = 3.8) -> Figure:
    """An empty figure of this many inches; call within `style()`."""
    figure = Figure(figsize=(width, height))
    figure.set_layout_engine("constrained", w_pad=0.06, h_pad=0.06)
    return figure


def wrap(text: str, width: float, letters: float = 8.2) -> str:
    """Return the text broken into lines of at most `width` inches, at `letters` letters an inch."""
    return "\n".join(textwrap.wrap(text, max(12, int(width * letters)))) if text else ""


def legend_below(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend under the axes, where it hides no data: as many columns as have room for the longest label."""
    most = max(map(len, labels))
    columns = max(1, min(len(labels), int(figure.get_figwidth() / (0.08 * most + 0.75))))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


# Lines.

Points = Sequence[tuple[float, float]]
"""`(x, y)` pairs; a y that is not finite (a run that diverged) leaves a gap."""

Scale = Literal["linear", "log"]


class Axis(NamedTuple):
    """An axis: its label, its numbers, and where it ends."""

    label: str
    format: numbers.Format | None = None
    scale: Scale = "linear"
    limits: tuple[float, float] | None = None


def draw(
    series: Mapping[str, Points], *, x: Axis, y: Axis, title: str, alt: str, level: tuple[str, float] | None = None
) -> Plot:
    """Draw series with one legend.

    Raises `DataError` where there is nothing to draw, a series has no finite point, or an axis cannot show a value.
    """
    if not series:
        raise DataError("curves: none to draw")
    with style():
        figure = new_figure(WIDTH, 4.2)
        axes = figure.subplots()
        lines: dict[str, Line2D] = {}
        for place, (name, points) in enumerate(series.items()):
            drawn, (places, mean, low, high) = look(place), reduced(f"curves[{name!r}]", points, y.scale)
            if np.any(high > low):
                axes.fill_between(places, low, high, color=drawn["color"], alpha=0.18, linewidth=0)
            (lines[name],) = axes.plot(places, mean, **drawn, markevery=max(1, len(places) // 10))
        if level is not None:
            label = f"{level[0]}: {(y.format or numbers.significant)(level[1])}"
            lines[label] = axes.axhline(level[1], color=INK, linewidth=1.3, linestyle=(0, (2, 2)), zorder=1)
        scaled(axes, y)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=STEPS))
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
        axes.yaxis.set_major_locator(logarithmic if high > 20 * low else MaxNLocator(6, steps=STEPS))
        axes.yaxis.set_major_formatter(_written(numbers.count))
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif y.format is not None:
        axes.yaxis.set_major_formatter(_written(y.format))
    axes.set(ylim=y.limits, ylabel=wrap(y.label, 3.0, 11.0))


def _written(form: numbers.Format) -> FuncFormatter:
    written = numbers.tick(form)
    return FuncFormatter(lambda value, _: written(value))


def reduced(field: str, points: Points, scale: Scale = "linear") -> tuple[np.ndarray, ...]:
    """Return x, increasing, and the mean, least and greatest of all values at each x; `[points]` each."""
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
    return x, *values.T


def spans(curves: Mapping[str, Points]) -> str:
    """Return in words from where to where each curve goes."""
    means = {name: reduced(f"curves[{name!r}]", points)[1] for name, points in curves.items()}
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
