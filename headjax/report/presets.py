"""Plots of headjax's measurements: learning, pruning, depth, captured variance, trade-offs and transfer.

All raise `DataError` where there is nothing to draw, a series has no finite point, or an axis cannot show a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from headjax.core.errors import DataError
from headjax.report import numbers
from headjax.report.curves import (
    LEVEL,
    THIN,
    Axis,
    Curve,
    Panel,
    Points,
    draw,
    line_plot,
    reduced,
    spans,
)
from headjax.report.style import INK, WIDTH, Plot

MOST_POINTS = 300
"""Points of a thin line; more are averaged in groups."""

Direction = Literal["lower", "higher"]
Drawn = Literal["linear", "log"]


def learning_curves(
    validation: Mapping[str, Points],
    train: Mapping[str, Points] | None = None,
    *,
    title: str = "Learning curves",
    x_label: str = "Training step",
    y_label: str = "Loss (nats per token)",
    scale: Drawn = "linear",
) -> Plot:
    """A metric during training, one look a model: validation as marked lines, training as thin ones.

    A second panel enlarges the second half of training where the first one cannot show the differences in it.

    Args:
        validation: `(step, value)` by model name.
        train: the same from the training batches; more than 300 points are averaged in groups, which the legend says.
        title: heading of the plot.
        x_label, y_label: axis labels with units.
        scale: of the vertical axis; "log" suits perplexity.
    """
    averaged = max([_group(points) for points in (train or {}).values()], default=1)
    thin = {name: _averaged(points) for name, points in (train or {}).items()}
    known = [reduced(f"train[{name!r}]", points, scale) for name, points in thin.items()]
    curves = [reduced(f"validation[{name!r}]", points, scale) for name, points in validation.items()]
    whole = Panel(
        series=validation,
        thin={name: [points] for name, points in thin.items()},
        y=Axis(y_label, scale=scale),
        title=title,
        field="validation",
    )
    window = _second_half(curves, known) if curves else None
    panels = [whole]
    if window is not None:
        panels.append(Panel(**{**vars(whole), "title": "Second half, enlarged", "window": window}))
    legend: list[tuple[str, Mapping[str, Any]]] = []
    if train:
        grouped = "training" if averaged == 1 else f"training, mean of {averaged} points"
        legend = [("validation", {"color": INK, "marker": "o"}), (grouped, {"color": INK, **THIN})]
    ends = "; ".join(
        f"{name} ends at {numbers.significant(curve.ends()[1])}" for name, curve in zip(validation, curves, strict=True)
    )
    return draw(
        [[panel] for panel in panels],
        x=Axis(x_label, numbers.count),
        title="",
        alt=f"{title}: line plot of {y_label} against {x_label}. Validation: {ends}.",
        height=4.0 if window is None else 6.6,
        legend=legend,
    )


def pruning_curves(
    curves: Mapping[str, Points],
    *,
    metric: str = "Perplexity",
    better: Direction = "lower",
    baseline: float | None = None,
    title: str = "Quality against heads removed",
    scale: Drawn = "linear",
) -> Plot:
    """A metric against the share of heads removed, one curve an order of removal.

    Args:
        curves: `(share removed, value)` by order; pairs of the same share are repeats (seeds of a random order): the
            line goes through their mean and a band reaches from the smallest to the largest.
        metric: name of the metric, with its unit.
        better: which values of the metric are the better ones.
        baseline: the metric of the unpruned model, drawn as a level line.
        title: heading of the plot.
        scale: of the vertical axis; "log" suits perplexity, which can grow a hundredfold.
    """
    for name, points in curves.items():
        if any(x < 0 or x > 1 for x, _ in points):
            raise DataError(f"curves[{name!r}]: fractions removed must lie between 0 and 1")
    level = baseline if baseline is not None and np.isfinite(baseline) else None
    return draw(
        [[Panel(series=curves, y=Axis(f"{metric}, {better} is better", scale=scale), level=level)]],
        x=Axis("Heads removed (% of all heads)", _bare_percent, limits=(-0.02, 1.02)),
        title=title,
        alt=f"{title}: line plot of {metric} against the share of heads removed, 0 to 100 %. {spans(curves)}.",
        legend=[] if level is None else [(f"all heads: {numbers.significant(level)}", LEVEL)],
    )


def variance_curves(curves: Mapping[str, Any], *, title: str = "Captured variance") -> Plot:
    """Cumulative variance captured by the leading principal directions (Cordonnier et al. 2020, figure 1).

    Args:
        curves: by what was decomposed, `[layers, dimensions]` cumulative shares (0..1) of 1, 2, ... dimensions; one
            thin line a layer and a bold one for their mean.
        title: heading of the plot.
    """
    means: dict[str, Points] = {}
    layers: dict[str, list[Points]] = {}
    for name, value in curves.items():
        shares = np.asarray(value, dtype=float)
        if shares.ndim != 2 or not shares.size:
            raise DataError(f"curves[{name!r}]: expected [layers, dimensions], got shape {shares.shape}")
        if not np.all((shares >= -1e-6) & (shares <= 1 + 1e-6)):
            raise DataError(f"curves[{name!r}]: captured variance must lie between 0 and 1")
        kept = range(1, shares.shape[1] + 1)
        means[name] = list(zip(kept, shares.mean(axis=0).tolist(), strict=True))
        layers[name] = [list(zip(kept, row, strict=True)) for row in shares.tolist()] if len(shares) > 1 else []
    y = Axis("Variance captured (%)", _bare_percent, limits=(0, 1.02))
    return draw(
        [[Panel(series=means, thin=layers, y=y)]],
        x=Axis("Dimensions kept", numbers.count),
        title=title,
        alt=f"{title}: line plot of the variance captured against the dimensions kept, for {', '.join(curves)}.",
    )


def depth_curves(
    curves: Mapping[str, Any], *, title: str = "Along depth", y_label: str = "Variance", scale: Drawn = "linear"
) -> Plot:
    """A measure along the depth of stacks, one line a model; stacks of different depths share the axis.

    Args:
        curves: by model name, `[repeats, layers or sub-layers]` values from the first to the last: the line goes
            through the mean of the repeats (seeds) and a band from the smallest to the largest.
        title: heading of the plot.
        y_label: the measure, with its unit.
        scale: of the vertical axis.
    """
    points = {}
    for name, value in curves.items():
        repeats = np.atleast_2d(np.asarray(value, dtype=float))
        share = np.arange(1, repeats.shape[1] + 1) / max(repeats.shape[1], 1)
        points[name] = [(x, y) for row in repeats for x, y in zip(share, row, strict=True)]
    label = "Depth (share of the stack)"
    return line_plot(points, title=title, x_label=label, y_label=y_label, scale=scale, x_format=numbers.percent)


def trade_off(
    series: Mapping[str, Points],
    *,
    cost: str = "Parameters",
    metric: str = "Perplexity",
    better: Direction = "lower",
    cost_format: numbers.Format = numbers.count,
    title: str = "Quality against cost",
    scale: Drawn = "linear",
) -> Plot:
    """Cost and quality of models, one point a model; a series of several (one model at several sizes) is joined.

    Args:
        series: `(cost, value)` pairs by name.
        cost, metric: axis labels with units.
        better: which values of the metric are the better ones.
        cost_format: how the cost is written, one of `headjax.report.numbers`.
        title: heading of the plot.
        scale: of the vertical axis.
    """
    said = "; ".join(
        f"{name} {', '.join(f'({cost_format(x)}, {numbers.significant(y)})' for x, y in sorted(points))}"
        for name, points in series.items()
    )
    y = Axis(f"{metric}, {better} is better", scale=scale)
    return draw(
        [[Panel(series=series, y=y, mode="joined", field="series")]],
        x=Axis(cost, cost_format),
        title=title,
        alt=f"{title}: points of {metric} against {cost}: {said}.",
        height=3.8,
    )


def importance_transfer(
    values: Mapping[str, tuple[Any, Any]],
    *,
    x_label: str,
    y_label: str,
    title: str = "Head importance on two data sets",
) -> Plot:
    """One point a head: its importance on two data sets, with Pearson's r over all heads (Michel et al., figure 2).

    Args:
        values: by head stack, importances of the same heads on the first and on the second data set.
        x_label, y_label: names of the two data sets, with the unit of importance.
        title: heading of the plot.
    """
    arrays = {name: [np.ravel(np.asarray(side, dtype=float)) for side in both] for name, both in values.items()}
    for name, (x, y) in arrays.items():
        if len(x) != len(y):
            raise DataError(f"values[{name!r}]: {len(x)} heads on the first data set, {len(y)} on the second")
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            raise DataError(f"values[{name!r}]: an importance is not finite")
    points = {name: list(zip(x, y, strict=True)) for name, (x, y) in arrays.items() if len(x)}
    if not points:
        raise DataError("values: no heads to draw")
    correlation = _pearson(*np.array([pair for some in points.values() for pair in some]).T)
    note = f"Pearson r = {correlation}"
    heads = sum(map(len, points.values()))
    return draw(
        [[Panel(series=points, y=Axis(y_label), mode="points", note=note, field="values")]],
        x=Axis(x_label),
        title=title,
        alt=f"{title}: scatter plot of {heads} heads, {y_label} against {x_label}, r = {correlation}.",
        height=0.85 * WIDTH,
    )


def _bare_percent(fraction: float | None) -> str:
    return numbers.percent(fraction).rstrip("%")


def _pearson(x: np.ndarray, y: np.ndarray) -> str:
    """Return Pearson's r = cov(x, y) / (std(x) std(y)) with two decimals, a dash where it is undefined."""
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return numbers.MISSING
    return f"{np.corrcoef(x, y)[0, 1]:.2f}"


def _group(points: Points) -> int:
    """Return the number of consecutive points to average, so that few enough are left to draw."""
    return max(1, -(-len(points) // MOST_POINTS))


def _averaged(points: Points) -> Points:
    size = _group(points)
    means = [np.mean(points[start : start + size], axis=0) for start in range(0, len(points), size)]
    return [(float(x), float(y)) for x, y in means]


def _second_half(
    curves: Sequence[Curve], thin: Sequence[Curve]
) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Return limits of x and y around the second half; None if it fills a third of the whole range anyway.

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
