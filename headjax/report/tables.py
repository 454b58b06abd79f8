"""A table of results: one value that prints on a console and stands in the HTML page."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from headjax.core import numbers
from headjax.core.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    format: numbers.Format = numbers.text
    better: Literal["lower", "higher"] | None = None

    @property
    def numeric(self) -> bool:
        """Whether the column holds numbers."""
        return self.format is not numbers.text


class Cell(NamedTuple):
    """A cell as printed, and its value as text that can be sorted."""

    text: str
    numeric: bool
    best: bool
    value: str


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of plain values under columns that know how to write them."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        for index, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise DataError(f"rows[{index}]: {len(row)} cells for {len(self.columns)} columns")

    def cells(self) -> list[list[Cell]]:
        """The rows as printed."""
        best = [self._best(index) for index in range(len(self.columns))]
        return [
            [
                Cell(
                    column.format(value),
                    column.numeric,
                    best[index] is not None and value == best[index],
                    _sortable(value, column.numeric),
                )
                for index, (column, value) in enumerate(zip(self.columns, row, strict=True))
            ]
            for row in self.rows
        ]

    def _best(self, index: int) -> float | None:
        """The best value of a column, None where there is no choice."""
        better = self.columns[index].better
        if better is None:
            return None
        values = {row[index] for row in self.rows if row[index] is not None and math.isfinite(row[index])}
        if len(values) < 2:
            return None
        return float(min(values) if better == "lower" else max(values))


def _sortable(value: Any, numeric: bool) -> str:
    """Return a value as a page's table sorts it: numbers in full, nothing for missing ones."""
    if not numeric:
        return str(value)
    return "" if value is None or math.isnan(value) else repr(float(value))


def print_table(table: Table, console: Console) -> None:
    """Prints the table on a rich console; the console decides between standard output and standard error."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable(title=Text(table.title) if table.title else None, title_justify="left", box=box.SIMPLE_HEAD)
    for column in table.columns:
        grid.add_column(Text(column.title), justify="right" if column.numeric else "left", overflow="fold")
    for row in table.cells():
        grid.add_row(*(Text(cell.text, style="bold" if cell.best else "") for cell in row))
    console.print(grid)
    for note in table.notes:
        console.print(Text(note, style="dim"))
