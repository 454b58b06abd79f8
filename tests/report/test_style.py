"""Plots look the same wherever they are drawn and leave no trace in Matplotlib's settings."""

import itertools

import matplotlib
import numpy as np
import pytest

from headjax.report import style
from headjax.report.presets import learning_curves


def luminance(color):
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def plot():
    return learning_curves({"standard": [(0, 3.0), (1, 2.0)], "fixed": [(0, 3.0), (1, 1.9)]})


def test_equal_plots_give_equal_bytes():
    assert plot().svg() == plot().svg()
    assert plot().png(50) == plot().png(50)
    same = plot()
    assert same.svg() == same.svg()
    assert plot().png(50).startswith(b"\x89PNG")


def test_output_holds_no_date_and_no_version():
    assert "dc:date" not in plot().svg()
    assert matplotlib.__version__ not in plot().svg()
    assert b"Software" not in plot().png(50)


def test_the_users_settings_neither_matter_nor_change():
    expected = plot().svg()
    with matplotlib.rc_context({"font.size": 31, "axes.grid": False, "svg.fonttype": "none", "text.color": "red"}):
        before = dict(matplotlib.rcParams)
        assert plot().svg() == expected
        assert dict(matplotlib.rcParams) == before


def test_no_figure_is_left_in_the_global_state():
    plot().svg()
    from matplotlib import _pylab_helpers

    assert not _pylab_helpers.Gcf.figs


def test_series_differ_in_more_than_colour():
    looks = [style.look(index) for index in range(len(style.PALETTE))]
    for parts in zip(*looks, strict=True):
        assert len({str(part) for part in parts}) == len(looks)


def test_no_two_of_many_series_look_alike():
    looks = [style.look(index) for index in range(30)]
    assert len({str(each) for each in looks}) == len(looks)
    for one, other in itertools.combinations(looks, 2):
        assert one.color != other.color or (one.marker != other.marker and one.linestyle != other.linestyle)


def test_text_stands_out_from_the_paper():
    def contrast(a, b):
        high, low = sorted((luminance(a), luminance(b)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    assert contrast(style.INK, style.PAPER) > 12
    assert contrast(style.MUTED, style.PAPER) > 4.5
    assert min(contrast(color, style.PAPER) for color in style.PALETTE[:3]) > 3


@pytest.mark.parametrize("name", ["a $b", "$\\frac{", "_hidden", "漢字", "<b>&amp;"])
def test_names_may_hold_any_character(name):
    shown = learning_curves({name: [(0, 3.0), (1, 2.0)]}, title=name)
    shown.svg()
    assert [text.get_text() for text in shown.figure.legends[0].get_texts()] == [name]


def test_long_titles_are_broken_into_lines():
    lines = style.wrap("Perplexity of the standard model as its heads are removed one after the other", 5.6).split("\n")
    assert len(lines) == 2
    assert style.wrap("", 5.6) == ""
