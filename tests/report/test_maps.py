"""Colour maps show every head that exists, where it is."""

import numpy as np
import pytest

import headjax


def meshes(plot):
    return [axes.collections[0] for axes in plot.figure.axes if axes.collections and axes.get_xlabel() == "Head"]


def test_missing_heads_are_left_out_and_named():
    values = np.array([[1.0, 2.0, 3.0], [4.0, np.nan, np.nan], [np.nan, np.nan, np.nan]])
    plot = headjax.plots.head_map({"decoder": values}, title="Importance", unit="Importance (nats)")
    axes = plot.figure.axes[0]
    np.testing.assert_array_equal(np.ma.getmaskarray(axes.collections[0].get_array()), np.isnan(values))
    assert sorted(text.get_text() for text in axes.texts) == ["1.00", "2.00", "3.00", "4.00"]
    bottom, top = axes.get_ylim()
    assert bottom > top, "layer 0 is at the top"
    assert axes.get_title(loc="left") == "Importance"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Head", "Layer")
    assert plot.figure.axes[-1].get_ylabel() == "Importance (nats)"
    assert plot.figure.legends[0].get_texts()[0].get_text() == "no head"
    assert "<svg" in plot.svg()


def test_stacks_of_different_sizes_share_one_scale():
    plot = headjax.plots.head_map({"encoder": np.ones((2, 4)), "decoder": np.full((3, 2), 7.0)}, title="Both", unit="u")
    assert [axes.get_title(loc="left") for axes in plot.figure.axes[:2]] == ["encoder", "decoder"]
    assert plot.figure.get_suptitle() == "Both"
    assert {mesh.get_clim() for mesh in meshes(plot)} == {(0.0, 7.0)}


@pytest.mark.parametrize(
    ("values", "limits"),
    [([-1.0, 3.0], (-3.0, 3.0)), ([1.0, 3.0], (0.0, 3.0)), ([-1.0, -3.0], (-3.0, 0.0)), ([0.0, 0.0], (0.0, 1.0))],
)
def test_two_signs_are_centred_on_zero_and_one_sign_starts_there(values, limits):
    (mesh,) = meshes(headjax.plots.head_map({"encoder": np.array([values])}, title="t", unit="u"))
    assert mesh.get_clim() == limits


def test_attention_patterns_put_queries_on_rows_and_keys_on_columns():
    probabilities = np.full((3, 2, 4), 0.25)
    plot = headjax.plots.attention_patterns(
        probabilities, ["a", " $b"], ["w", "x\n", "y", "z"], names=["e/0/0", "e/0/1", "e/0/2"]
    )
    axes = plot.figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "·$b"]
    assert [label.get_text() for label in plot.figure.axes[2].get_xticklabels()] == ["w", "x\\n", "y", "z"]
    assert [axes.get_title(loc="left") for axes in plot.figure.axes[:3]] == ["e/0/0", "e/0/1", "e/0/2"]
    assert axes.collections[0].get_array().shape == (2, 4)
    assert axes.collections[0].get_clim() == (0.0, 1.0)
    assert axes.get_ylabel() == "Query"
    assert plot.figure.axes[-1].get_xlabel() == "Probability"
    plot.svg()


@pytest.mark.parametrize(
    ("plot", "field"),
    [
        (lambda: headjax.plots.head_map({}, title="t", unit="u"), "values"),
        (lambda: headjax.plots.head_map({"a": np.ones(3)}, title="t", unit="u"), "values['a']"),
        (lambda: headjax.plots.head_map({"a": np.ones((0, 3))}, title="t", unit="u"), "values['a']"),
        (lambda: headjax.plots.head_map({"a": np.array([[1.0, np.inf]])}, title="t", unit="u"), "values['a']"),
        (lambda: headjax.plots.head_map({"a": np.full((2, 2), np.nan)}, title="t", unit="u"), "values"),
        (lambda: headjax.plots.attention_patterns(np.ones((1, 2, 3)), ["a", "b"]), "probabilities"),
        (lambda: headjax.plots.attention_patterns(np.ones((2, 1, 1)), ["a"], names=["x"]), "names"),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_its_field(plot, field):
    with pytest.raises(headjax.DataError) as caught:
        plot()
    assert str(caught.value).startswith(f"{field}: ")
