"""Tables of the user's files: TSV, CSV, JSON, JSON lines and Parquet, all values as text."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headjax.core.errors import DataError
from headjax.core.serialize import unknown_name
from headjax.data.files import read_lines, source_of
from headjax.data.rows import Row
from headjax.storage.files import check_characters, first_line, parse_json, read_text, reading

PARQUET_ROWS = 1024
"""Rows of a Parquet file that are read at a time."""

Columns = Mapping[str, str]
"""For each field of the rows its column: a name in the header, a key, or a number from 0 for a file without header."""

Cells = Iterator[tuple[int, list[str]]]
"""The cells of every row that is not blank, with the number of the row's first line."""


class Rules(NamedTuple):
    """Rules of a TSV file.

    Attributes:
        quotes: whether it may have quoted cells; else a quotation mark is an ordinary character.
        skips: whether rows with another number of columns than the first line are left out; else they are an error.
    """

    quotes: bool = True
    skips: bool = False


def table_rows(path: str | Path, columns: Columns, rules: Rules = Rules()) -> Iterator[Row]:
    """Yield the rows of a table, all values as text. Only a JSON array is read as a whole.

    Formats are known by suffix, each also with `.gz`: `.csv` (commas, with quotes), `.tsv` and `.txt` (tabs; see
    `_csv_cells`), `.json` (one array of objects), `.jsonl` (one object per line); and `.parquet`, which needs
    `pyarrow`.

    Args:
        path: the file.
        columns: the column of each field.
        rules: of a TSV file.

    Raises:
        DataError: a file that cannot be read, a missing column, a row with another number of columns, a value that is
            missing (but for a `label`, which is then blank) or neither text nor a finite number; the message starts
            with the file and, where known, the line.
    """
    file = source_of(path)
    suffix = _suffix(file)
    if suffix not in SUFFIXES:
        raise DataError(f"{file}: a table's name ends in one of {', '.join(SUFFIXES)}, also with .gz")
    row = None
    for row in _delimited(file, columns, rules) if suffix in DELIMITED else _named(file, columns):
        yield row
    if row is None:
        raise DataError(f"{file}: no rows")


def header(path: str | Path) -> tuple[str, ...]:
    """Return the cells of a TSV or CSV file's first line, the keys of a JSON file's first object, or Parquet's columns.

    Raises:
        DataError: a file that cannot be read.
    """
    file = source_of(path)
    if _suffix(file) == ".parquet":
        with _parquet_file(file) as table:
            return tuple(table.schema_arrow.names)
    for _, first in _cells(file, True) if _suffix(file) in DELIMITED else _objects(file):
        return tuple(first)
    raise DataError(f"{file}: no rows")


def is_table(path: str | Path) -> bool:
    """Return whether a file's suffix is that of a table; `.txt` files count as text."""
    return _suffix(source_of(path)) in set(SUFFIXES) - {".txt"}


def _suffix(file: Path) -> str:
    return Path(file.name.removesuffix(".gz")).suffix


def _delimited(file: Path, columns: Columns, rules: Rules) -> Iterator[Row]:
    rows = _cells(file, rules.quotes)
    line, first = next(rows)
    if all(column.isdecimal() for column in columns.values()):
        wanted = {field: int(column) for field, column in columns.items()}
        missing = next((number for number in wanted.values() if number >= len(first)), None)
        if missing is not None:
            raise DataError(f"{file}: line {line}: no column {missing}, there are {len(first)}, counted from 0")
        rows = itertools.chain([(line, first)], rows)
    else:
        wanted = {field: _index(file, first, column) for field, column in columns.items()}
    for line, cells in rows:
        if len(cells) != len(first):
            if rules.skips:
                continue
            raise DataError(f"{file}: line {line}: {len(cells)} columns where the first line has {len(first)}")
        yield Row(f"{file}: line {line}", {field: cells[number] for field, number in wanted.items()})


def _cells(file: Path, quotes: bool) -> Cells:
    if _suffix(file) == ".csv":
        return _csv_cells(file, ",")
    return _csv_cells(file, "\t") if quotes and _is_quoted(file) else _plain_cells(file, quotes)


def _csv_cells(file: Path, delimiter: str) -> Cells:
    """Yield the cells of a file whose writer quoted cells, as Python's `csv` and pandas do.

    A cell with a quotation mark, a delimiter or a line end stands between quotation marks, and those inside it are
    doubled.

    Raises:
        DataError: a quotation mark that is not closed, or, between tabs, in a cell that is not quoted as a whole.
    """
    csv.field_size_limit(2**26)
    held: list[str] = []
    reader, line = csv.reader(_noted(read_lines(file), held), delimiter=delimiter, strict=True), 1
    try:
        for cells in reader:
            record = "".join(held)
            if delimiter == "\t" and any('"' in cell and _quoted(cell) not in record for cell in cells):
                raise _mixed(file, line, "has quotation marks but is not quoted as a whole, others are")
            if cells:
                yield line, cells
            held.clear()
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{file}: line {line}: {error}") from None


def _noted(lines: Iterator[str], held: list[str]) -> Iterator[str]:
    """Yield lines, and note them."""
    for line in lines:
        held.append(line)
        yield line


def _quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"'


_QUOTED = re.compile(r'"[^"]*(?:""[^"]*)*"')


def _plain_cells(file: Path, quotes: bool) -> Cells:
    """Yield the cells of a TSV file in which a quotation mark is an ordinary character.

    Raises:
        DataError: with `quotes`, a cell that is quoted as a whole and has doubled marks inside.
    """
    for number, line in enumerate(read_lines(file), start=1):
        cells = line.removesuffix("\n").split("\t")
        if quotes and '""' in line and any(map(_is_doubled, cells)):
            raise _mixed(file, number, "is quoted as a whole, earlier ones have marks of their own")
        if cells != [""]:
            yield number, cells


def _mixed(file: Path, line: int, what: str) -> DataError:
    return DataError(f"{file}: line {line}: a cell {what}; write all cells in one way")


def _is_doubled(cell: str) -> bool:
    return _QUOTED.fullmatch(cell) is not None and '""' in cell[1:-1]


def _is_quoted(file: Path) -> bool:
    """Return whether the writer of a TSV file quoted cells: the first line that fits only one way decides.

    A cell between quotation marks with doubled ones inside is quoted, and so is a row that has as many cells as the
    first line only if it is read so. Any other cell with a quotation mark is not. If all such cells have one mark at
    either end, they are quoted if they fill a column.
    """
    width, lines = 0, read_lines(file)
    filled: set[int] | None = None
    for line in lines:
        cells = line.removesuffix("\n").split("\t")
        width = width or len(cells)
        if '"' not in line:
            filled = set() if line.strip() else filled
            continue
        if len(cells) != width:
            record = line
            while record.count('"') % 2 and (following := next(lines, "")):
                record += following
            with contextlib.suppress(csv.Error):
                return [*map(len, csv.reader([record], delimiter="\t", strict=True))] == [width]
            return False
        if any(map(_is_doubled, cells)):
            return True
        if any('"' in cell and not _QUOTED.fullmatch(cell) for cell in cells):
            return False
        quoted = {number for number, cell in enumerate(cells) if cell.startswith('"')}
        filled = quoted if filled is None else filled & quoted
    return bool(filled)


def _index(file: Path, names: list[str], column: str) -> int:
    if column not in names:
        raise DataError(f"{file}: {unknown_name('column', column, names)}")
    if names.count(column) > 1:
        raise DataError(f"{file}: {names.count(column)} columns are named {column!r}")
    return names.index(column)


def _named(file: Path, columns: Columns) -> Iterator[Row]:
    for place, entry in _records(file, columns) if _suffix(file) == ".parquet" else _objects(file):
        for column in columns.values():
            if column not in entry:
                raise DataError(f"{place}: {unknown_name('key', column, entry)}")
        cells = {field: entry[column] for field, column in columns.items()}
        if "label" in cells and (cells["label"] is None or cells["label"] != cells["label"]):
            cells["label"] = ""  # no label: null, or NaN among numbers
        yield Row(place, {field: _as_text(cell, f"{place}: {columns[field]}") for field, cell in cells.items()})


def _objects(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects of a JSON array or of JSON lines, with their places."""
    if _suffix(file) == ".jsonl":
        for number, line in enumerate(read_lines(file), start=1):
            place = f"{file}: line {number}"
            if line.strip():
                yield place, _object(place, parse_json(line.strip(), place))
        return
    entries = parse_json(read_text(file), str(file))
    if not isinstance(entries, list):
        squad = isinstance(entries, dict) and "data" in entries
        hint = f"; a task of questions in SQuAD's format is squad:{file}" if squad else ""
        raise DataError(f"{file}: expected an array of objects{hint}")
    for number, entry in enumerate(entries):
        yield f"{file}: entry {number}", _object(f"{file}: entry {number}", entry)


@contextlib.contextmanager
def _parquet_file(file: Path) -> Iterator[Any]:
    """Open a Parquet file.

    Raises:
        DataError: pyarrow is not installed, or a file that cannot be read.
    """
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise DataError(f"{file}: Parquet files are read by pyarrow: pip install '.[data]' from a checkout") from None
    with reading(file), file.open("rb") as stream:
        try:
            yield ParquetFile(stream)
        except ArrowException as error:
            raise DataError(f"{file}: not a Parquet file that can be read ({first_line(error)})") from None


def _records(file: Path, columns: Columns) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the rows of a Parquet file with these columns, and their places."""
    wanted, number = list(dict.fromkeys(columns.values())), itertools.count()
    with _parquet_file(file) as table:
        for column in wanted:
            _index(file, table.schema_arrow.names, column)
        for batch in table.iter_batches(PARQUET_ROWS, columns=wanted):
            for index in range(batch.num_rows):
                cells = {column: batch.column(column)[index] for column in wanted}
                yield f"{file}: row {next(number)}", {column: _value(cell) for column, cell in cells.items()}


def _value(cell: Any) -> Any:
    """Return the value of a cell of a Parquet file; the cell itself where Python has no such value."""
    try:
        return cell.as_py()
    except ValueError:  # times to the nanosecond
        return cell


def _object(place: str, entry: Any) -> Mapping[str, Any]:
    if not isinstance(entry, dict):
        raise DataError(f"{place}: expected an object, got {type(entry).__name__}")
    return entry


def _as_text(value: Any, place: str) -> str:
    if isinstance(value, str):
        return check_characters(value, place)
    if value is None:
        raise DataError(f"{place}: no value, found null")
    if isinstance(value, float) and not math.isfinite(value):
        raise DataError(f"{place}: not a finite number, found {value}")
    if isinstance(value, int | float):
        return json.dumps(value)
    raise DataError(f"{place}: neither text nor a number, but {type(value).__name__}")


DELIMITED = (".csv", ".tsv", ".txt")
"""Suffixes of tables of cells; the others are of named values."""

SUFFIXES = (*DELIMITED, ".json", ".jsonl", ".parquet")
"""Suffixes of tables."""
