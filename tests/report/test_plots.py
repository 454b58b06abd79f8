"""Plots show the values they are given, and refuse what they cannot show by the name of its series."""

import functools

import numpy as np
import pytest

from headjax.core.errors import DataError
from headjax.report import numbers
from headjax.report.presets import (
    depth_curves,
    importance_transfer,
    learning_curves,
    pruning_curves,
    trade_off,
    variance_curves,
)


def legend(plot):
    return [text.get_text() for text in plot.figure.legends[0].get_texts()]


def test_learning_curves_have_title_units_and_every_model():
    plot = learning_curves(
        {"standard": [(0, 6.0), (50, 3.0), (100, 2.0)], "fixed": [(0, 6.0), (50, 2.9), (100, 1.9)]},
        {"standard": [(step, 6.0 - 0.04 * step) for step in range(101)]},
        title="Loss",
    )
    axes = plot.figure.axes[0]
    assert (axes.get_title(loc="left"), axes.get_ylabel()) == ("Loss", "Loss (nats per token)")
    assert plot.figure.axes[-1].get_xlabel() == "Training step"
    assert legend(plot) == ["standard", "fixed", "validation", "training"]
    assert "fixed ends at 1.90" in plot.alt


def test_late_differences_get_a_panel_of_their_own():
    steps = np.arange(0, 1001, 50)
    flat = {name: [(s, 2 + shift + 5 * np.exp(-s / 80)) for s in steps] for name, shift in (("a", 0.0), ("b", 0.05))}
    _, enlarged = learning_curves(flat).figure.axes
    low, high = enlarged.get_ylim()
    assert low < 2.0 < 2.05 < high < 2.2
    assert len(learning_curves({"a": [(s, 10 - s / 200) for s in steps]}).figure.axes) == 1


def test_many_training_points_are_averaged_and_the_legend_says_so():
    plot = learning_curves({"a": [(0, 1.0), (3000, 0.5)]}, {"a": [(step, float(step % 2)) for step in range(3000)]})
    line = plot.figure.axes[0].get_lines()[0]
    assert len(line.get_xdata()) == 300
    np.testing.assert_allclose(line.get_ydata(), 0.5)
    assert legend(plot)[-1] == "training, mean of 10 points"


def test_a_value_that_is_not_finite_leaves_a_gap():
    plot = learning_curves({"a": [(0, 3.0), (1, np.nan), (2, np.inf), (3, 2.0)]})
    values = plot.figure.axes[0].get_lines()[0].get_ydata()
    np.testing.assert_array_equal(np.isnan(values), [False, True, True, False])
    plot.svg()


def test_repeats_of_a_fraction_become_a_mean_and_a_band():
    repeated = [(0.0, 10.0), (1.0, 90.0), (0.5, 20.0), (0.5, 40.0), (0.5, 30.0)]
    plot = pruning_curves({"random": repeated}, baseline=10.0, title="Pruning")
    axes = plot.figure.axes[0]
    line = axes.get_lines()[0]
    np.testing.assert_allclose(line.get_xdata(), [0.0, 0.5, 1.0])
    np.testing.assert_allclose(line.get_ydata(), [10.0, 30.0, 90.0])
    corners = {tuple(corner) for corner in axes.collections[0].get_paths()[0].vertices}
    assert {(0.5, 20.0), (0.5, 40.0)} <= corners
    assert (axes.get_title(loc="left"), axes.get_xlabel()) == ("Pruning", "Heads removed (% of all heads)")
    assert axes.get_ylabel() == "Perplexity, lower is better"
    assert legend(plot) == ["random", "all heads: 10.0"]
    assert [axes.xaxis.get_major_formatter()(share) for share in (0.5, 1.0)] == ["50", "100"]
    (single,) = pruning_curves({"a": [(0.0, 90.0), (1.0, 50.0)]}, metric="Accuracy (%)", better="higher").figure.axes
    assert not single.collections
    assert single.get_ylabel() == "Accuracy (%), higher is better"


@pytest.mark.parametrize("high", [12.0, 30.0, 5000.0])
def test_a_logarithmic_axis_has_plain_numbers_however_narrow(high):
    plot = pruning_curves({"importance": [(0.0, 8.0), (1.0, high)]}, scale="log")
    plot.svg()
    axis = plot.figure.axes[0].yaxis
    low, top = plot.figure.axes[0].get_ylim()
    marks = zip(axis.get_ticklabels(), axis.get_ticklocs(), strict=True)
    shown = [text.get_text() for text, at in marks if low <= at <= top]
    assert len(shown) >= 3
    assert all(text.replace(",", "").replace(".", "").isdigit() for text in shown)


def test_captured_variance_draws_layers_and_their_mean():
    axes = variance_curves({"keys": [[0.2, 0.6, 1.0], [0.4, 0.8, 1.0]]}).figure.axes[0]
    np.testing.assert_allclose(axes.get_lines()[-1].get_ydata(), [0.3, 0.7, 1.0])
    assert len(axes.get_lines()) == 3
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Dimensions kept", "Variance captured (%)")


def test_depths_of_different_stacks_share_the_axis():
    plot = depth_curves({"shallow": [1.0, 2.0], "deep": [[1.0, 1.0, 2.0, 4.0], [1.0, 3.0, 2.0, 8.0]]}, y_label="Nats")
    (axes,) = plot.figure.axes
    shallow, deep = axes.get_lines()
    np.testing.assert_allclose(shallow.get_xdata(), [0.5, 1.0])
    np.testing.assert_allclose(deep.get_xdata(), [0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(deep.get_ydata(), [1.0, 2.0, 2.0, 6.0])
    assert len(axes.collections) == 1  # a band where repeats differ
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Depth (share of the stack)", "Nats")
    assert legend(plot) == ["shallow", "deep"]
    assert "deep goes from 1.00 to 6.00" in plot.alt


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


transfer = functools.partial(importance_transfer, x_label="A (nats)", y_label="B (nats)")


def test_importance_transfer_computes_pearson_over_all_heads():
    rng = np.random.default_rng(0)
    x, y = rng.random(20), rng.random(20)
    axes = transfer({"encoder": (x[:8], y[:8]), "cross": (x[8:], y[8:])}).figure.axes[0]
    assert axes.texts[0].get_text() == f"Pearson r = {np.corrcoef(x, y)[0, 1]:.2f}"
    assert sum(len(line.get_xdata()) for line in axes.get_lines()) == 20
    assert {line.get_linestyle() for line in axes.get_lines()} == {"None"}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("A (nats)", "B (nats)")
    constant = transfer({"encoder": ([1.0, 1.0], [1.0, 2.0])}).figure.axes[0]
    assert constant.texts[0].get_text() == f"Pearson r = {numbers.MISSING}"


FINE = [(0.0, 1.0), (1.0, 2.0)]


@pytest.mark.parametrize(
    ("plot", "field"),
    [
        (lambda: learning_curves({}), "validation"),
        (lambda: learning_curves({"a": []}), "validation['a']"),
        (lambda: learning_curves({"a": [(0.0, 1.0), (np.nan, 1.0)]}), "validation['a']"),
        (lambda: learning_curves({"a": FINE}, {"a": []}), "train['a']"),
        (lambda: pruning_curves({}), "curves"),
        (lambda: pruning_curves({"a": [(0.0, np.nan)]}), "curves['a']"),
        (lambda: pruning_curves({"a": [(0.0, 1.0), (40.0, 2.0)]}), "curves['a']"),
        (lambda: pruning_curves({"a": [(0.0, 0.0), (1.0, 2.0)]}, scale="log"), "curves['a']"),
        (lambda: depth_curves({"zero": [0.0, 1.0]}, scale="log"), "curves['zero']"),
        (lambda: variance_curves({}), "curves"),
        (lambda: variance_curves({"a": [0.1, 1.0]}), "curves['a']"),
        (lambda: variance_curves({"a": [[0.1, 1.2]]}), "curves['a']"),
        (lambda: variance_curves({"a": [[np.nan, 1.0]]}), "curves['a']"),
        (lambda: variance_curves({"a": np.zeros((0, 4))}), "curves['a']"),
        (lambda: trade_off({}), "series"),
        (lambda: trade_off({"a": []}), "series['a']"),
        (lambda: trade_off({"a": [(1.0, np.nan)]}), "series['a']"),
        (lambda: transfer({}), "values"),
        (lambda: transfer({"a": ([], [])}), "values"),
        (lambda: transfer({"a": ([1.0], [1.0, 2.0])}), "values['a']"),
        (lambda: transfer({"a": ([np.nan], [1.0])}), "values['a']"),
    ],
)
def test_what_cannot_be_drawn_is_one_line_about_its_series(plot, field):
    with pytest.raises(DataError) as caught:
        plot()
    assert str(caught.value).startswith(f"{field}: ")
    assert "\n" not in str(caught.value)
