"""Plots show the values they are given."""

import numpy as np
import pytest

from headjax.core.errors import DataError
from headjax.report import numbers
from headjax.report.curves import line_plot
from headjax.report.presets import (
    depth_curves,
    importance_transfer,
    learning_curves,
    pruning_curves,
    trade_off,
    variance_curves,
)


def drawn(axes):
    return {line.get_color(): line for line in axes.get_lines()}


def texts(legend):
    return [text.get_text() for text in legend.get_texts()]


def test_learning_curves_have_title_units_and_every_model():
    plot = learning_curves(
        {"standard": [(0, 6.0), (50, 3.0), (100, 2.0)], "fixed": [(0, 6.0), (50, 2.9), (100, 1.9)]},
        {"standard": [(step, 6.0 - 0.04 * step) for step in range(101)]},
        title="Loss",
    )
    axes = plot.figure.axes[0]
    assert axes.get_title(loc="left") == "Loss"
    assert axes.get_ylabel() == "Loss (nats per token)"
    assert plot.figure.axes[-1].get_xlabel() == "Training step"
    assert texts(plot.figure.legends[0]) == ["standard", "fixed", "validation", "training"]
    assert "fixed ends at 1.90" in plot.alt


def test_late_differences_get_a_panel_of_their_own():
    steps = np.arange(0, 1001, 50)
    flat = {name: [(s, 2 + shift + 5 * np.exp(-s / 80)) for s in steps] for name, shift in (("a", 0.0), ("b", 0.05))}
    plot = learning_curves(flat)
    assert len(plot.figure.axes) == 2
    low, high = plot.figure.axes[1].get_ylim()
    assert low < 2.0 < 2.05 < high < 2.2
    straight = {"a": [(s, 10 - s / 200) for s in steps]}
    assert len(learning_curves(straight).figure.axes) == 1


def test_many_training_points_are_averaged_and_the_legend_says_so():
    train = [(step, float(step % 2)) for step in range(3000)]
    plot = learning_curves({"a": [(0, 1.0), (3000, 0.5)]}, {"a": train})
    line = plot.figure.axes[0].get_lines()[0]
    assert len(line.get_xdata()) == 300
    np.testing.assert_allclose(line.get_ydata(), 0.5)
    assert texts(plot.figure.legends[0])[-1] == "training, mean of 10 points"


def test_a_value_that_is_not_finite_leaves_a_gap():
    plot = learning_curves({"a": [(0, 3.0), (1, np.nan), (2, np.inf), (3, 2.0)]})
    values = plot.figure.axes[0].get_lines()[0].get_ydata()
    np.testing.assert_array_equal(np.isnan(values), [False, True, True, False])
    plot.svg()


def test_repeats_of_a_fraction_become_a_mean_and_a_band():
    points = [(0.0, 10.0), (1.0, 90.0), (0.5, 20.0), (0.5, 40.0), (0.5, 30.0)]
    plot = pruning_curves({"random": points}, baseline=10.0, title="Pruning")
    axes = plot.figure.axes[0]
    line = axes.get_lines()[0]
    np.testing.assert_allclose(line.get_xdata(), [0.0, 0.5, 1.0])
    np.testing.assert_allclose(line.get_ydata(), [10.0, 30.0, 90.0])
    corners = {tuple(corner) for corner in axes.collections[0].get_paths()[0].vertices}
    assert {(0.5, 20.0), (0.5, 40.0)} <= corners
    assert axes.get_xlabel() == "Heads removed (% of all heads)"
    assert axes.get_ylabel() == "Perplexity, lower is better"
    assert axes.get_title(loc="left") == "Pruning"
    assert texts(plot.figure.legends[0]) == ["random", "all heads: 10.0"]
    assert axes.xaxis.get_major_formatter()(0.5) == "50"
    assert axes.xaxis.get_major_formatter()(1.0) == "100"


def test_a_single_run_has_no_band():
    plot = pruning_curves({"importance": [(0.0, 90.0), (1.0, 50.0)]}, metric="Accuracy (%)", better="higher")
    assert not plot.figure.axes[0].collections
    assert plot.figure.axes[0].get_ylabel() == "Accuracy (%), higher is better"


@pytest.mark.parametrize("high", [12.0, 30.0, 5000.0])
def test_a_logarithmic_axis_has_plain_numbers_however_narrow(high):
    plot = pruning_curves({"importance": [(0.0, 8.0), (1.0, high)]}, scale="log")
    plot.svg()
    axis = plot.figure.axes[0].yaxis
    low, top = plot.figure.axes[0].get_ylim()
    shown = [
        text.get_text() for text, at in zip(axis.get_ticklabels(), axis.get_ticklocs(), strict=True) if low <= at <= top
    ]
    assert len(shown) >= 3
    assert all(text.replace(",", "").replace(".", "").isdigit() for text in shown)


@pytest.mark.parametrize("call", [learning_curves, pruning_curves])
@pytest.mark.parametrize(
    ("curves", "message"),
    [
        ({}, "none to draw"),
        ({"random": []}, r"\['random'\]: no finite points to draw"),
        ({"random": [(0.0, np.nan)]}, r"\['random'\]: no finite points to draw"),
        ({"random": [(0.0, 1.0), (np.nan, 1.0)]}, r"\['random'\]: a horizontal position is not finite"),
    ],
)
def test_nothing_to_draw_is_a_one_line_error(call, curves, message):
    with pytest.raises(DataError, match=message) as caught:
        call(curves)
    assert "\n" not in str(caught.value)


def test_what_the_axes_cannot_show_is_an_error():
    with pytest.raises(DataError, match=r"curves\['a'\]: fractions removed must lie between 0 and 1"):
        pruning_curves({"a": [(0.0, 1.0), (40.0, 2.0)]})
    with pytest.raises(DataError, match=r"curves\['a'\]: a logarithmic axis cannot show"):
        pruning_curves({"a": [(0.0, 0.0), (1.0, 2.0)]}, scale="log")
    with pytest.raises(DataError, match=r"train\['a'\]: no finite points"):
        learning_curves({"a": [(0, 1.0)]}, {"a": []})


def test_captured_variance_draws_layers_and_their_mean():
    plot = variance_curves({"keys": [[0.2, 0.6, 1.0], [0.4, 0.8, 1.0]]})
    axes = plot.figure.axes[0]
    np.testing.assert_allclose(axes.get_lines()[-1].get_ydata(), [0.3, 0.7, 1.0])
    assert len(axes.get_lines()) == 3
    assert axes.get_ylabel() == "Variance captured (%)"
    assert axes.get_title(loc="left")
    assert axes.get_xlabel() == "Dimensions kept"


@pytest.mark.parametrize(
    "curves", [{}, {"a": [0.1, 1.0]}, {"a": [[0.1, 1.2]]}, {"a": [[np.nan, 1.0]]}, {"a": np.zeros((0, 4))}]
)
def test_captured_variance_checks_its_values(curves):
    with pytest.raises(DataError, match=r"^curves"):
        variance_curves(curves)


def test_depths_of_different_stacks_share_the_axis():
    plot = depth_curves({"shallow": [1.0, 2.0], "deep": [[1.0, 1.0, 2.0, 4.0], [1.0, 3.0, 2.0, 8.0]]})
    shallow, deep = plot.figure.axes[0].get_lines()
    np.testing.assert_allclose(shallow.get_xdata(), [0.5, 1.0])
    np.testing.assert_allclose(deep.get_xdata(), [0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(deep.get_ydata(), [1.0, 2.0, 2.0, 6.0])
    assert len(plot.figure.axes[0].collections) == 1  # a band where repeats differ
    assert "deep goes from 1.00 to 6.00" in plot.alt
    with pytest.raises(DataError, match="a logarithmic axis cannot show"):
        depth_curves({"zero": [0.0, 1.0]}, scale="log")


def test_a_line_plot_has_its_labels_units_and_repeats():
    plot = line_plot(
        {"fit": [(8, 0.5), (32, 0.001), (8, 0.7)], "bound": [(8, 0.4), (32, 0.0005)]},
        title="Fits",
        x_label="Head size (dimensions)",
        y_label="Divergence (nats a row)",
        scale="log",
    )
    axes = plot.figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Head size (dimensions)", "Divergence (nats a row)")
    np.testing.assert_allclose(axes.get_lines()[0].get_ydata(), [0.6, 0.001])
    assert len(axes.collections) == 1
    assert texts(plot.figure.legends[0]) == ["fit", "bound"]
    assert "fit goes from 0.600 to 0.00100" in plot.alt


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
    assert sum(len(line.get_xdata()) for line in axes.get_lines()) == 20
    assert {line.get_linestyle() for line in axes.get_lines()} == {"None"}
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
