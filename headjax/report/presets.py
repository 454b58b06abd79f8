"""Plots of headjax's measurements: learning, pruning and trade-offs.

All raise `DataError` where there is nothing to draw, a series has no finite point, or an axis cannot show a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from headjax.core.errors import DataError
from headjax.report import numbers
from headjax.report.curves import Axis, Points, Scale, draw, line_plot, spans
from headjax.report.style import Plot

Direction = Literal["lower", "higher"]


def learning_curves(
    validation: Mapping[str, Points],
    *,
    title: str = "Learning curves",
    x_label: str = "Training step",
    y_label: str = "Loss (nats per token)",
    scale: Scale = "linear",
) -> Plot:
    """A metric during training, one line a model."""
    return line_plot(validation, title=title, x_label=x_label, y_label=y_label, scale=scale)


def pruning_curves(
    curves: Mapping[str, Points],
    *,
    metric: str = "Perplexity",
    better: Direction = "lower",
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
        x=Axis("Heads removed (% of all heads)", _bare_percent, limits=(-0.02, 1.02)),
        y=Axis(f"{metric}, {better} is better", scale=scale),
        title=title,
        alt=f"{title}: line plot of {metric} against the share of heads removed, 0 to 100 %. {spans(curves)}.",
        level=level,
    )


def trade_off(
    series: Mapping[str, Points],
    *,
    cost: str = "Parameters",
    metric: str = "Perplexity",
    better: Direction = "lower",
    cost_format: numbers.Format = numbers.count,
    title: str = "Quality against cost",
    scale: Scale = "linear",
) -> Plot:
    """Cost and quality of models, one point a model; a series of several (one model at several sizes) is joined."""
    said = "; ".join(
        f"{name} {', '.join(f'({cost_format(x)}, {numbers.significant(y)})' for x, y in sorted(points))}"
        for name, points in series.items()
    )
    return draw(
        series,
        x=Axis(cost, cost_format),
        y=Axis(f"{metric}, {better} is better", scale=scale),
        title=title,
        alt=f"{title}: points of {metric} against {cost}: {said}.",
        height=3.8,
        joined=True,
    )


def _bare_percent(fraction: float | None) -> str:
    return numbers.percent(fraction).rstrip("%")
