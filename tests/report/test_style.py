"""Numbers, tables and plots look the same wherever they are drawn and leave no trace in Matplotlib's settings."""

import io
import itertools
import math

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from headjax.core.errors import DataError
from headjax.report import numbers, style
from headjax.report.presets import learning_curves
from headjax.report.tables import Column, Table, print_table


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (12.5, "12.5"),
        (1234, "1.23 K"),
        (1_234_567, "1.23 M"),
        (7.24e9, "7.24 B"),
        (-1500, "-1.50 K"),
    ],
)
def test_counts(value, text):
    assert numbers.count(value) == text


def test_rounding_up_changes_the_prefix_and_not_the_width():
    assert numbers.count(999_600) == "1.00 M"
    assert numbers.size(999.7) == "1.00 KB"
    assert numbers.count(9.999) == "10.0"


def test_units():
    assert numbers.flops(45.6e9) == "45.6 GFLOP"
    assert numbers.flops(7) == "7 FLOP"
    assert numbers.size(512) == "512 B"
    assert numbers.size(12_300) == "12.3 KB"
    assert numbers.percent(0.4213) == "42.1%"
    assert numbers.ratio(1.234) == "1.23×"  # noqa: RUF001
    assert numbers.fixed(2)(9.876) == "9.88"
    assert numbers.significant(0.0012345) == "0.00123"
    assert numbers.significant(12_345_678) == "1.23e+07"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.000123, "123 µs"),
        (0.0123, "12.3 ms"),
        (0.9999, "1.00 s"),
        (1.234, "1.23 s"),
        (59.97, "1 min 00 s"),
        (245, "4 min 05 s"),
        (3599.9, "1 h 00 min"),
        (3720, "1 h 02 min"),
        (-1.5, "-1.50 s"),
    ],
)
def test_durations(seconds, text):
    assert numbers.duration(seconds) == text


FORMATS = [
    numbers.count,
    numbers.flops,
    numbers.size,
    numbers.duration,
    numbers.percent,
    numbers.ratio,
    numbers.significant,
    numbers.fixed(1),
]


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_absent_prints_as_a_dash(form):
    assert form(None) == form(math.nan) == numbers.MISSING
    assert form(math.inf) == "∞"
    assert form(-math.inf) == "-∞"


@given(st.floats(1e-3, 1e14))
def test_a_count_reads_back_to_three_digits(value):
    digits, _, prefix = numbers.count(value).partition(" ")
    scale = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}[prefix]
    assert float(digits) * scale == pytest.approx(value, rel=0.0051)


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        (numbers.count, 1400, "1,400"),
        (numbers.count, 0.2, "0.2"),
        (numbers.count, 1_400_000, "1.4 M"),
        (numbers.count, 2_000_000, "2 M"),
        (numbers.size, 100_000, "100 KB"),
        (numbers.flops, 1_050_000, "1.05 MFLOP"),
        (numbers.percent, 0.2, "20%"),
        (numbers.percent, 0.125, "12.5%"),
    ],
)
def test_marks_of_an_axis_carry_no_idle_zeros(form, value, text):
    assert numbers.tick(form)(value) == text


@pytest.mark.parametrize(
    ("values", "power"),
    [([0.5, 20.0], 0), ([3e-3], -3), ([9.99e-4], -6), ([9.999e-4], -3), ([4e4], 3), ([0.0, math.nan], 0), ([], 0)],
)
def test_power_of_ten(values, power):
    assert numbers.power_of_ten(values) == power


COLUMNS = (Column("Model"), Column("Parameters", numbers.count), Column("Perplexity", numbers.fixed(2), "lower"))


def printed(table, width=100):
    stream = io.StringIO()
    print_table(table, Console(file=stream, width=width))
    return stream.getvalue()


def test_cells_are_formatted_and_the_best_is_marked():
    table = Table(COLUMNS, [("standard", 1_804_288, 9.1234), ("fixed", 1_811_200, 8.5), ("broken", None, math.nan)])
    cells = table.cells()
    assert [cell.text for cell in cells[0]] == ["standard", "1.80 M", "9.12"]
    assert [row[2].best for row in cells] == [False, True, False]
    assert not any(row[1].best for row in cells)
    assert [cell.text for cell in cells[2]] == ["broken", numbers.MISSING, numbers.MISSING]


def test_higher_can_be_better_and_a_single_value_is_not_the_best():
    columns = (Column("Speed", numbers.count, "higher"),)
    assert [row[0].best for row in Table(columns, [(1,), (3,), (2,)]).cells()] == [False, True, False]
    assert not Table(columns, [(1,), (1,)]).cells()[0][0].best


def test_numbers_are_aligned_to_the_right():
    lines = printed(Table(COLUMNS, [("a", 1, 1.0), ("b", 1_000_000, 10.0)])).splitlines()
    ends = {len(line.rstrip()) for line in lines if line.strip().startswith(("a", "b"))}
    assert len(ends) == 1


def test_text_is_printed_as_it_is():
    hostile = "[bold red]x[/] \\[y]"
    assert hostile in printed(Table((Column("[i]Name"),), [(hostile,)], title="[b]T", notes=["[/nothing]"]))
    assert "[/nothing]" in printed(Table(COLUMNS, [], notes=["[/nothing]"]))


def test_a_table_of_no_rows_prints_its_heading():
    assert "Perplexity" in printed(Table(COLUMNS, []))


def test_a_row_of_another_length_is_an_error():
    with pytest.raises(DataError, match=r"^rows\[1\]: 2 cells for 3 columns$"):
        Table(COLUMNS, [("a", 1, 2.0), ("b", 1)])


def luminance(color):
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def loss_plot():
    return learning_curves({"standard": [(0, 3.0), (1, 2.0)], "fixed": [(0, 3.0), (1, 1.9)]})


def test_equal_plots_give_equal_bytes():
    assert loss_plot().svg() == loss_plot().svg()
    assert loss_plot().png(50) == loss_plot().png(50)
    same = loss_plot()
    assert same.svg() == same.svg()
    assert loss_plot().png(50).startswith(b"\x89PNG")


def test_output_holds_no_date_and_no_version():
    assert "dc:date" not in loss_plot().svg()
    assert matplotlib.__version__ not in loss_plot().svg()
    assert b"Software" not in loss_plot().png(50)


def test_the_users_settings_neither_matter_nor_change():
    expected = loss_plot().svg()
    with matplotlib.rc_context({"font.size": 31, "axes.grid": False, "svg.fonttype": "none", "text.color": "red"}):
        before = dict(matplotlib.rcParams)
        assert loss_plot().svg() == expected
        assert dict(matplotlib.rcParams) == before


def test_no_figure_is_left_in_the_global_state():
    loss_plot().svg()
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
