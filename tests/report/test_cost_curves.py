"""Cost curves as small multiples: two panels an operation, colours by factor, departures in words."""

from __future__ import annotations

import pytest

from headjax.core.errors import DataError
from headjax.report.cost_curves import CostPoints, cost_curves
from headjax.report.style import look

STRAIGHT = CostPoints((6, 12, 24), (1.0, 2.0, 4.0), (10, 20, 40), (100, 200, 400), False)
FLAT = CostPoints((1, 2, 4, 8), (1.0, 1.1, 1.2, 1.3), (5, 10, 20, 40), (100, 100, 200, 300), True)


def test_every_operation_has_a_panel_of_time_and_one_of_memory():
    plot = cost_curves({"train": {"depth": STRAIGHT, "batch": FLAT}, "decode": {"depth": STRAIGHT}}, title="Costs")
    titles = [axes.get_title(loc="left") for axes in plot.figure.axes]
    assert titles == ["train", "train", "decode", "decode"]
    time, memory, *_ = plot.figure.axes
    assert (time.get_ylabel(), memory.get_ylabel()) == ("time, times first", "memory, times first")
    # Of each factor the theory's line and the measured one, in the colour that the factor has everywhere.
    assert [line.get_color() for line in time.lines] == [look(i).color for i in (0, 0, 1, 1)]
    assert [line.get_color() for line in memory.lines] == [look(0).color, look(1).color]
    assert list(time.lines[3].get_ydata()) == pytest.approx([1.0, 1.1, 1.2, 1.3])
    assert list(time.lines[2].get_ydata()) == pytest.approx([1.0, 2.0, 4.0, 8.0])
    assert [axes.get_title(loc="right") for axes in plot.figure.axes] == ["departs: batch", "", "", ""]
    assert all(axes.get_yscale() == axes.get_xscale() == "log" for axes in plot.figure.axes)
    assert "batch 1 to 8: time 1.3 times, work 8 times, departs" in plot.alt


def test_what_cannot_be_drawn_is_named():
    with pytest.raises(DataError, match=r"^operations: none to draw$"):
        cost_curves({})
    with pytest.raises(DataError, match=r"^operations\['train'\]\['depth'\]: a logarithmic axis cannot"):
        cost_curves({"train": {"depth": STRAIGHT._replace(seconds=(0.0, 1.0, 2.0))}})
