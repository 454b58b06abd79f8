"""Plots show the values they are given, and refuse what they cannot show by the name of its series."""

import numpy as np
import pytest

import headjax


def legend(plot):
    return [text.get_text() for text in plot.figure.legends[0].get_texts()]


def losses(curves, title="Loss"):
    return headjax.plots.line_plot(curves, title=title, x_label="Training step", y_label="Loss (nats per token)")


def test_line_plots_have_title_units_and_every_model():
    curves = {"standard": [(0, 6.0), (50, 3.0), (100, 2.0)], "fixed": [(0, 6.0), (50, 2.9), (100, 1.9)]}
    plot = losses(curves)
    axes = plot.figure.axes[0]
    assert (axes.get_title(loc="left"), axes.get_ylabel()) == ("Loss", "Loss (nats per token)")
    assert axes.get_xlabel() == "Training step"
    assert legend(plot) == ["standard", "fixed"]
    assert "fixed goes from 6.00 to 1.90" in plot.alt


def test_a_value_that_is_not_finite_leaves_a_gap():
    plot = losses({"a": [(0, 3.0), (1, np.nan), (2, np.inf), (3, 2.0)]})
    values = plot.figure.axes[0].get_lines()[0].get_ydata()
    np.testing.assert_array_equal(np.isnan(values), [False, True, True, False])
    plot.svg()


def test_repeats_of_a_fraction_become_a_mean_and_a_band():
    repeated = [(0.0, 10.0), (1.0, 90.0), (0.5, 20.0), (0.5, 40.0), (0.5, 30.0)]
    plot = headjax.plots.pruning_curves({"random": repeated}, baseline=10.0, title="Pruning")
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
    (single,) = headjax.plots.pruning_curves(
        {"a": [(0.0, 90.0), (1.0, 50.0)]}, metric="Accuracy (%)", better="higher"
    ).figure.axes
    assert not single.collections
    assert single.get_ylabel() == "Accuracy (%), higher is better"


@pytest.mark.parametrize("high", [12.0, 30.0, 5000.0])
def test_a_logarithmic_axis_has_plain_numbers_however_narrow(high):
    plot = headjax.plots.pruning_curves({"importance": [(0.0, 8.0), (1.0, high)]}, scale="log")
    plot.svg()
    axis = plot.figure.axes[0].yaxis
    low, top = plot.figure.axes[0].get_ylim()
    marks = zip(axis.get_ticklabels(), axis.get_ticklocs(), strict=True)
    shown = [text.get_text() for text, at in marks if low <= at <= top]
    assert len(shown) >= 3
    assert all(text.replace(",", "").replace(".", "").isdigit() for text in shown)


@pytest.mark.parametrize(
    ("plot", "field"),
    [
        (lambda: losses({}), "curves"),
        (lambda: losses({"a": []}), "curves['a']"),
        (lambda: losses({"a": [(0.0, 1.0), (np.nan, 1.0)]}), "curves['a']"),
        (lambda: headjax.plots.pruning_curves({}), "curves"),
        (lambda: headjax.plots.pruning_curves({"a": [(0.0, np.nan)]}), "curves['a']"),
        (lambda: headjax.plots.pruning_curves({"a": [(0.0, 1.0), (40.0, 2.0)]}), "curves['a']"),
        (lambda: headjax.plots.pruning_curves({"a": [(0.0, 0.0), (1.0, 2.0)]}, scale="log"), "curves['a']"),
    ],
)
def test_what_cannot_be_drawn_is_one_line_about_its_series(plot, field):
    with pytest.raises(headjax.DataError) as caught:
        plot()
    assert str(caught.value).startswith(f"{field}: ")
    assert "\n" not in str(caught.value)
