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
    right: bool = False  # of texts that begin with numbers

    @property
    def to_the_right(self) -> bool:
        """Whether cells end at the right."""
        return self.right or self.numeric

    @property
    def numeric(self) -> bool:
        """Whether the column holds numbers."""
        return self.format is not numbers.text


class Cell(NamedTuple):
    """A cell as printed, and its value as text that can be sorted."""

    text: str
    to_the_right: bool
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
        cells: list[list[Cell]] = [[] for _ in self.rows]
        for index, column in enumerate(self.columns):
            best: float | None = None  # where there is a choice
            values = [row[index] for row in self.rows]
            if column.better is not None:
                finite = {value for value in values if value is not None and math.isfinite(value)}
                best = (min if column.better == "lower" else max)(finite) if len(finite) > 1 else None
            for row, value in zip(cells, values, strict=True):
                missing = column.numeric and (value is None or math.isnan(value))
                sorted_by = "" if missing else repr(float(value)) if column.numeric else str(value)
                row.append(
                    Cell(column.format(value), column.to_the_right, best is not None and value == best, sorted_by)
                )
        return cells


def print_table(table: Table, console: Console) -> None:
    """Prints the table on a rich console; the console decides between standard output and standard error."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable(title=Text(table.title) if table.title else None, title_justify="left", box=box.SIMPLE_HEAD)
    for column in table.columns:
        grid.add_column(Text(column.title), justify="right" if column.to_the_right else "left", overflow="fold")
    for row in table.cells():
        grid.add_row(*(Text(cell.text, style="bold" if cell.best else "") for cell in row))
    console.print(grid)
    for note in table.notes:
        console.print(Text(note, style="dim"))
