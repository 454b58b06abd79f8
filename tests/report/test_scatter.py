"""Point plots."""

import numpy as np
import pytest

from headjax.core.errors import DataError
from headjax.report import numbers
from headjax.report.scatter import importance_transfer, trade_off


def test_trade_off_orders_points_by_cost():
    plot = trade_off({"standard": [(2e6, 9.0), (1e6, 11.0)], "fixed": [(2e6, 8.0)]}, title="Cost")
    axes = plot.figure.axes[0]
    np.testing.assert_allclose(axes.get_lines()[0].get_xdata(), [1e6, 2e6])
    assert axes.get_lines()[1].get_linestyle() == "None"
    assert axes.get_title(loc="left") == "Cost"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Parameters", "Perplexity, lower is better")
    assert axes.xaxis.get_major_formatter()(1.5e6) == "1.5 M"
    assert "fixed (2.00 M, 8.00)" in plot.alt
    assert trade_off({"a": [(1.0, 2.0)]}, cost_format=numbers.size, scale="log").svg()


def test_importance_transfer_computes_pearson_over_all_heads():
    rng = np.random.default_rng(0)
    x, y = rng.random(20), rng.random(20)
    plot = importance_transfer(
        {"encoder": (x[:8], y[:8]), "cross": (x[8:], y[8:])}, x_label="A (nats)", y_label="B (nats)"
    )
    axes = plot.figure.axes[0]
    assert axes.texts[0].get_text() == f"Pearson r = {np.corrcoef(x, y)[0, 1]:.2f}"
    assert sum(len(points.get_offsets()) for points in axes.collections) == 20
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("A (nats)", "B (nats)")
    assert axes.get_title(loc="left")


def test_constant_importance_has_no_correlation():
    plot = importance_transfer({"encoder": ([1.0, 1.0], [1.0, 2.0])}, x_label="A", y_label="B")
    assert plot.figure.axes[0].texts[0].get_text() == f"Pearson r = {numbers.MISSING}"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "values: no heads"),
        ({"encoder": ([], [])}, "values: no heads"),
        ({"encoder": ([1.0], [1.0, 2.0])}, r"values\['encoder'\]: 1 heads on the first"),
        ({"encoder": ([np.nan], [1.0])}, r"values\['encoder'\]: an importance is not finite"),
    ],
)
def test_transfer_checks_its_values(values, message):
    with pytest.raises(DataError, match=f"^{message}"):
        importance_transfer(values, x_label="A", y_label="B")


@pytest.mark.parametrize("series", [{}, {"a": []}, {"a": [(1.0, np.nan)]}])
def test_trade_off_needs_points(series):
    with pytest.raises(DataError, match=r"^series"):
        trade_off(series)
