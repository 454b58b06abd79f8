"""What sharing costs: a metric against the size of converted models, a panel a formulation."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from headjax.core.errors import DataError
from headjax.report import numbers
from headjax.report.curves import Points
from headjax.report.style import INK, WIDTH, Plot, finished, legend_below, look, new_figure, style, wrap


def sharing_curves(
    panels: Mapping[str, Mapping[str, Points]],
    *,
    baseline: float,
    metric: str,
    title: str = "Quality of converted models",
) -> Plot:
    """A metric against parameters, one panel a formulation, one line a way to convert.

    Args:
        panels: by formulation and by way, `(parameters, value)` of each size.
        baseline: the original's value, drawn as a level line.
        metric: name of the metric.
        title: heading of the plot.

    Raises:
        DataError: nothing to draw.
    """
    if not panels or not all(panels.values()):
        raise DataError("panels: none to draw")
    looks = {name: look(i) for i, name in enumerate(dict.fromkeys(n for panel in panels.values() for n in panel))}
    written = numbers.tick(numbers.count)
    with style():
        figure = new_figure(height=1.0 + 2.3 * len(panels))
        all_axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (name, series) in zip(all_axes, panels.items(), strict=True):
            for way, points in series.items():
                color, marker, linestyle = looks[way]
                x, y = zip(*sorted(points), strict=True)
                axes.plot(x, y, color=color, marker=marker, linestyle=linestyle)
            axes.axhline(baseline, color=INK, linewidth=1.3, linestyle=(0, (2, 2)), zorder=1)
            axes.set_title(name, fontsize=12, fontweight="normal")
            axes.set_ylabel(metric)
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.xaxis.set_major_formatter(lambda value, _: written(value))
        all_axes[-1].set_xlabel("Parameters")
        figure.suptitle(wrap(title, WIDTH), x=0.02, ha="left", fontweight="bold", fontsize=13, color=INK)
        handles = [Line2D([], [], color=a.color, marker=a.marker, linestyle=a.linestyle) for a in looks.values()]
        handles.append(Line2D([], [], color=INK, linewidth=1.3, linestyle=(0, (2, 2))))
        legend_below(figure, handles, [*looks, f"original: {numbers.significant(baseline)}"])
    return finished(figure, f"{title}: {metric} against parameters of models converted to {', '.join(panels)}.")
