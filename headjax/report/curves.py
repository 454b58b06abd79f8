"""Line plots: learning, pruning and captured-variance curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from headjax.core.errors import DataError
from headjax.report import numbers
from headjax.report.style import INK, WIDTH, Look, Plot, finished, legend_below, look, new_axes, new_figure, style, wrap

Points = Sequence[tuple[float, float]]
"""`(x, y)` pairs; a y that is not finite (a run that diverged) leaves a gap."""

_MOST_POINTS = 300


class Curve(NamedTuple):
    """Points of increasing x, repeats of the same x reduced: `mean`, `low` and `high`, `[points]` each."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def learning_curves(
    validation: Mapping[str, Points],
    train: Mapping[str, Points] | None = None,
    *,
    title: str = "Learning curves",
    x_label: str = "Training step",
    y_label: str = "Loss (nats per token)",
    scale: Literal["linear", "log"] = "linear",
) -> Plot:
    """A metric during training, one colour a model: validation as marked lines, training as thin ones.

    A second panel enlarges the second half of training where the first one cannot show the differences in it.

    Args:
        validation: `(step, value)` by model name.
        train: the same from the training batches; more than 300 points are averaged in groups, which the legend says.
        title: heading of the plot.
        x_label, y_label: axis labels with units.
        scale: of the vertical axis; "log" suits perplexity.

    Raises:
        DataError: no curves, a curve without a finite point, or a value that a logarithmic axis cannot show.
    """
    curves = _curves("validation", validation, scale)
    train = train or {}
    thin = {name: _curve(f"train[{name!r}]", _thin(points), scale) for name, points in train.items()}
    looks = {name: look(place) for place, name in enumerate(dict.fromkeys([*curves, *thin]))}
    window = _second_half([*curves.values()], [*thin.values()])
    with style():
        figure = new_figure(height=4.0 if window is None else 6.6)
        panels = figure.subplots(1 if window is None else 2, squeeze=False)[:, 0]
        for axes in panels:
            for name, curve in thin.items():
                axes.plot(curve.x, curve.mean, color=looks[name].color, alpha=0.55, linewidth=1.1)
            for name, curve in curves.items():
                _draw(axes, curve, looks[name])
            _scale(axes, scale)
            axes.set_ylabel(y_label)
            axes.xaxis.set_major_formatter(_plain_numbers())
        figure.set_layout_engine("constrained", w_pad=0.06, h_pad=0.06, hspace=0.05)
        panels[0].set_title(wrap(title, WIDTH))
        panels[-1].set_xlabel(x_label)
        if window is not None:
            panels[1].set(xlim=window[0], ylim=window[1])
            panels[1].set_title("Second half, enlarged", fontsize=12, fontweight="normal")
        handles, labels = _entries(looks)
        if train:
            handles += [Line2D([], [], color=INK, marker="o"), Line2D([], [], color=INK, alpha=0.55, linewidth=1.1)]
            averaged = max(_group(points) for points in train.values())
            labels += ["validation", "training" if averaged == 1 else f"training, mean of {averaged} points"]
        legend_below(figure, handles, labels)
    ends = "; ".join(f"{name} ends at {numbers.significant(_last(curve))}" for name, curve in curves.items())
    return finished(figure, f"{title}: line plot of {y_label} against {x_label}. Validation: {ends}.")


def pruning_curves(
    curves: Mapping[str, Points],
    *,
    metric: str = "Perplexity",
    better: Literal["lower", "higher"] = "lower",
    baseline: float | None = None,
    title: str = "Quality against heads removed",
    scale: Literal["linear", "log"] = "linear",
) -> Plot:
    """A metric against the fraction of heads removed, one curve an order of removal.

    Args:
        curves: `(fraction removed, value)` by order; pairs of the same fraction are repeats (seeds of a random order):
            the line goes through their mean and a band reaches from the smallest to the largest.
        metric: name of the metric, with its unit.
        better: which values of the metric are the better ones.
        baseline: the metric of the model before pruning, drawn as a level line.
        title: heading of the plot.
        scale: of the vertical axis; "log" suits perplexity, which can grow a hundredfold.

    Raises:
        DataError: no curves, a curve without a finite point, a fraction outside 0..1, or a value that a logarithmic
            axis cannot show.
    """
    reduced = _curves("curves", curves, scale)
    for name, curve in reduced.items():
        if curve.x[0] < 0 or curve.x[-1] > 1:
            raise DataError(f"curves[{name!r}]: fractions removed must lie between 0 and 1")
    with style():
        figure, axes = new_axes(title, "Heads removed (% of all heads)", f"{metric}, {better} is better", height=4.2)
        looks = {name: look(place) for place, name in enumerate(reduced)}
        for name, curve in reduced.items():
            if np.any(curve.high > curve.low):
                axes.fill_between(curve.x, curve.low, curve.high, color=looks[name].color, alpha=0.18, linewidth=0)
            _draw(axes, curve, looks[name])
        handles, labels = _entries(looks)
        if baseline is not None and np.isfinite(baseline):
            handles.append(axes.axhline(baseline, color=INK, linewidth=1.3, linestyle=(0, (2, 2)), zorder=1))
            labels.append(f"all heads: {numbers.significant(baseline)}")
        _scale(axes, scale)
        axes.set_xlim(-0.02, 1.02)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=""))
        legend_below(figure, handles, labels)
    spans = "; ".join(
        f"{name} goes from {numbers.significant(_first(curve))} to {numbers.significant(_last(curve))}"
        for name, curve in reduced.items()
    )
    return finished(figure, f"{title}: line plot of {metric} against the share of heads removed, 0 to 100 %. {spans}.")


def variance_curves(
    curves: Mapping[str, Any],
    *,
    title: str = "Captured variance",
    x_label: str = "Dimensions kept",
) -> Plot:
    """Cumulative variance captured by the leading principal directions (Cordonnier et al. 2020, figure 1).

    Args:
        curves: by what was decomposed, `[layers, dimensions]` cumulative fractions (0..1) of 1, 2, ... dimensions; one
            thin line a layer and a bold one for their mean.
        title: heading of the plot.
        x_label: label of the horizontal axis.

    Raises:
        DataError: no curves, or values that are not `[layers, dimensions]` or not between 0 and 1.
    """
    if not curves:
        raise DataError("curves: none to draw")
    with style():
        figure, axes = new_axes(title, x_label, "Variance captured (%)")
        looks = {name: look(place) for place, name in enumerate(curves)}
        for name, value in curves.items():
            fractions = np.asarray(value, dtype=float)
            if fractions.ndim != 2 or not fractions.size:
                raise DataError(f"curves[{name!r}]: expected [layers, dimensions], got shape {fractions.shape}")
            if not np.all((fractions >= -1e-6) & (fractions <= 1 + 1e-6)):
                raise DataError(f"curves[{name!r}]: captured variance must lie between 0 and 1")
            kept = np.arange(1, fractions.shape[1] + 1)
            if len(fractions) > 1:
                axes.plot(kept, fractions.T, color=looks[name].color, alpha=0.3, linewidth=0.8)
            mean = fractions.mean(axis=0)
            _draw(axes, Curve(kept, mean, mean, mean), looks[name])
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=""))
        legend_below(figure, *_entries(looks))
    return finished(figure, f"{title}: line plot of the variance captured against {x_label}, for {', '.join(curves)}.")


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
    reduced = _curves("curves", curves, scale)
    written = numbers.tick(x_format)
    with style():
        figure, axes = new_axes(title, x_label, y_label, height=4.2)
        looks = {name: look(place) for place, name in enumerate(reduced)}
        for name, curve in reduced.items():
            if np.any(curve.high > curve.low):
                axes.fill_between(curve.x, curve.low, curve.high, color=looks[name].color, alpha=0.18, linewidth=0)
            _draw(axes, curve, looks[name])
        _scale(axes, scale)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value)))
        legend_below(figure, *_entries(looks))
    spans = "; ".join(
        f"{name} goes from {numbers.significant(_first(curve))} to {numbers.significant(_last(curve))}"
        for name, curve in reduced.items()
    )
    return finished(figure, f"{title}: line plot of {y_label} against {x_label}. {spans}.")


def depth_curves(
    curves: Mapping[str, Any],
    *,
    title: str = "Along depth",
    y_label: str = "Variance",
    scale: Literal["linear", "log"] = "linear",
) -> Plot:
    """A measure along the depth of stacks, one line a model; stacks of different depths share the axis.

    Args:
        curves: by model name, `[repeats, layers or sub-layers]` values from the first to the last: the line goes
            through the mean of the repeats (seeds) and a band from the smallest to the largest.
        title: heading of the plot.
        y_label: the measure, with its unit.
        scale: of the vertical axis.

    Raises:
        DataError: no curves, a curve without a finite point, or a value that a logarithmic axis cannot show.
    """
    points = {}
    for name, value in curves.items():
        repeats = np.atleast_2d(np.asarray(value, dtype=float))
        share = np.arange(1, repeats.shape[1] + 1) / max(repeats.shape[1], 1)
        points[name] = [(x, y) for row in repeats for x, y in zip(share, row, strict=True)]
    label = "Depth (share of the stack)"
    return line_plot(points, title=title, x_label=label, y_label=y_label, scale=scale, x_format=numbers.percent)


def axis_of_log(axes: Axes, which: Literal["x", "y"]) -> None:
    """Make an axis logarithmic, with numbers at 1, 2 and 5; over more than four decades at powers of ten alone."""
    axis = axes.yaxis if which == "y" else axes.xaxis
    (axes.set_yscale if which == "y" else axes.set_xscale)("log")
    low, high = axis.get_data_interval()
    logarithmic = LogLocator(subs=(1, 2, 5) if high < 1e4 * low else (1,))
    axis.set_major_locator(logarithmic if high > 20 * low else MaxNLocator(6))
    axis.set_major_formatter(_plain_numbers())
    axis.set_minor_formatter(NullFormatter())


def _plain_numbers() -> FuncFormatter:
    written = numbers.tick(numbers.count)
    return FuncFormatter(lambda value, _: written(value))


def _curves(field: str, curves: Mapping[str, Points], scale: str) -> dict[str, Curve]:
    if not curves:
        raise DataError(f"{field}: none to draw")
    return {name: _curve(f"{field}[{name!r}]", points, scale) for name, points in curves.items()}


def _curve(field: str, points: Points, scale: str) -> Curve:
    pairs = np.asarray(points, dtype=float).reshape(-1, 2)
    if not np.isfinite(pairs).all(axis=1).any():
        raise DataError(f"{field}: no finite points to draw")
    if not np.isfinite(pairs[:, 0]).all():
        raise DataError(f"{field}: a horizontal position is not finite")
    if scale == "log" and np.any(pairs[:, 1] <= 0):
        raise DataError(f"{field}: a logarithmic axis cannot show values of zero or less")
    x, place = np.unique(pairs[:, 0], return_inverse=True)
    groups = [pairs[place == index, 1] for index in range(len(x))]
    reduced = np.array([(np.mean(group), np.min(group), np.max(group)) for group in groups])
    reduced[~np.isfinite(reduced).all(axis=1)] = np.nan
    return Curve(x, *reduced.T)


def _group(points: Points) -> int:
    """Return the number of consecutive points to average, so that few enough are left to draw."""
    return max(1, -(-len(points) // _MOST_POINTS))


def _thin(points: Points) -> Points:
    size = _group(points)
    means = [np.mean(points[start : start + size], axis=0) for start in range(0, len(points), size)]
    return [(float(x), float(y)) for x, y in means]


def _second_half(
    curves: Sequence[Curve], thin: Sequence[Curve]
) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Limits of x and y around the second half, None if it fills a third of the whole range anyway.

    The thin curves are noisy: their highest and lowest twentieth do not count.
    """
    x = np.concatenate([curve.x for curve in curves])
    y = np.concatenate([curve.mean for curve in curves])
    middle, end = (x.min() + x.max()) / 2, x.max()
    late = y[(x >= middle) & np.isfinite(y)]
    if len(late) < 2 * len(curves):
        return None
    for curve in thin:
        inside = curve.mean[(curve.x >= middle) & (curve.x <= end) & np.isfinite(curve.mean)]
        late = np.concatenate([late, np.quantile(inside, (0.05, 0.95)) if len(inside) else inside])
    low, high = float(late.min()), float(late.max())
    if high - low > np.nanmax(y) / 3 - np.nanmin(y) / 3 or high == low:
        return None
    margin = 0.08 * (high - low)
    return (float(middle), float(end + 0.02 * (end - middle))), (low - margin, high + margin)


def _draw(axes: Axes, curve: Curve, appearance: Look) -> None:
    axes.plot(curve.x, curve.mean, **appearance.drawn, markevery=max(1, len(curve.x) // 10))


def _entries(looks: Mapping[str, Look]) -> tuple[list[Any], list[str]]:
    """Legend handles and labels."""
    handles: list[Any] = [Line2D([], [], **entry.drawn) for entry in looks.values()]
    return handles, list(looks)


def _scale(axes: Axes, scale: str) -> None:
    if scale == "log":
        axis_of_log(axes, "y")


def _first(curve: Curve) -> float:
    return float(curve.mean[np.isfinite(curve.mean)][0])


def _last(curve: Curve) -> float:
    return float(curve.mean[np.isfinite(curve.mean)][-1])
