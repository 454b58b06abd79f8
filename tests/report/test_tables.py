"""Tables print the same cells on a console and in HTML."""

import io
import math

import pytest
from rich.console import Console

from headjax.core.errors import DataError
from headjax.report import numbers
from headjax.report.tables import Column, Table, print_table

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
