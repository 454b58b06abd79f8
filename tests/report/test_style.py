"""Numbers, tables and plots look the same wherever they are drawn and leave no trace in Matplotlib's settings."""

import io
import math

import matplotlib
import pytest
from matplotlib import _pylab_helpers
from rich.console import Console

import headjax
from headjax.core import numbers
from headjax.report.tables import Column, Table, print_table
from tests.report.test_plots import losses


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        (numbers.count, 0, "0"),
        (numbers.count, 9.999, "10.0"),  # rounded up, a number changes its prefix and not its width
        (numbers.count, 999_600, "1.00 M"),
        (numbers.count, 7.24e9, "7.24 B"),
        (numbers.count, -1500, "-1.50 K"),
        (numbers.flops, 45.6e9, "45.6 GFLOP"),
        (numbers.size, 512, "512 B"),
        (numbers.size, 999.7, "1.00 KB"),
        (numbers.percent, 0.4213, "42.1%"),
        (numbers.fixed(2), 9.876, "9.88"),
        (numbers.significant, 0.0012345, "0.00123"),
        (numbers.duration, 0.000123, "123 µs"),
        (numbers.duration, 0.9999, "1.00 s"),
        (numbers.duration, 59.97, "1 min 00 s"),
        (numbers.duration, 3599.9, "1 h 00 min"),
        (numbers.duration, -1.5, "-1.50 s"),
        # Marks of an axis carry no idle zeros.
        (numbers.tick(numbers.count), 1400, "1,400"),
        (numbers.tick(numbers.size), 100_000, "100 KB"),
        (numbers.tick(numbers.flops), 1_050_000, "1.05 MFLOP"),
        (numbers.tick(numbers.percent), 0.125, "12.5%"),
    ],
)
def test_numbers_are_written_with_three_digits_and_their_unit(form, value, text):
    assert form(value) == text


FORMATS = [numbers.count, numbers.flops, numbers.size, numbers.duration, numbers.percent]


@pytest.mark.parametrize("form", [*FORMATS, numbers.significant, numbers.fixed(1)])
def test_what_is_absent_prints_as_a_dash(form):
    assert form(None) == form(math.nan) == numbers.MISSING
    assert (form(math.inf), form(-math.inf)) == ("∞", "-∞")


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
    speed = (Column("Speed", numbers.count, "higher"),)
    assert [row[0].best for row in Table(speed, [(1,), (3,), (2,)]).cells()] == [False, True, False]
    assert not Table(speed, [(1,), (1,)]).cells()[0][0].best, "a single value is not the best"
    with pytest.raises(headjax.DataError, match=r"^rows\[1\]: "):
        Table(COLUMNS, [("a", 1, 2.0), ("b", 1)])


def test_a_table_is_printed_as_it_is_with_numbers_at_the_right():
    lines = printed(Table(COLUMNS, [("a", 1, 1.0), ("b", 1_000_000, 10.0)])).splitlines()
    ends = {len(line.rstrip()) for line in lines if line.strip().startswith(("a", "b"))}
    assert len(ends) == 1
    hostile = "[bold red]x[/] \\[y]"
    assert hostile in printed(Table((Column("[i]Name"),), [(hostile,)], title="[b]T", notes=["[/nothing]"]))
    empty = printed(Table(COLUMNS, [], notes=["[/nothing]"]))
    assert "Perplexity" in empty
    assert "[/nothing]" in empty


def loss_plot():
    return losses({"standard": [(0, 3.0), (1, 2.0)], "fixed": [(0, 3.0), (1, 1.9)]})


def test_the_users_settings_neither_matter_nor_change():
    expected = loss_plot().png(50)
    with matplotlib.rc_context({"font.size": 31, "axes.grid": False, "svg.fonttype": "none", "text.color": "red"}):
        before = dict(matplotlib.rcParams)
        assert loss_plot().png(50) == expected
        assert dict(matplotlib.rcParams) == before
    assert not _pylab_helpers.Gcf.figs, "no figure is left in the global state"


@pytest.mark.parametrize("name", ["a $b", "$\\frac{", "_hidden", "漢字", "<b>&amp;"])
def test_names_may_hold_any_character(name):
    shown = losses({name: [(0, 3.0), (1, 2.0)]}, title=name)
    shown.svg()
    assert [text.get_text() for text in shown.figure.legends[0].get_texts()] == [name]
