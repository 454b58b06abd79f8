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
from typing import TYPE_CHECKING, Any, NamedTuple

from headjax.core.errors import DataError
from headjax.core.fields import unknown_name
from headjax.data.files import read_lines, source_of
from headjax.data.rows import Row
from headjax.storage.files import check_characters, first_line, opened, parse_json, read_text, reading

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

PARQUET_ROWS = 1024
"""Rows of a Parquet file that are read at a time."""

BLOCK = 2**24
"""Bytes of a CSV or TSV file that are read at a time; no row is longer."""

Columns = Mapping[str, str]
"""For each field of the rows its column: a name in the header, a key, or a number from 0 for a file without header."""

Entries = Iterator[tuple[str, Mapping[str, Any]]]
"""Rows of a file with named values, and before each its place."""


class Rules(NamedTuple):
    """Rules of a TSV file."""

    raw: bool = False
    skips: bool = False


def table_rows(path: str | Path, columns: Columns, rules: Rules = Rules()) -> Iterator[Row]:
    """Yield the rows of a table, all values as text. Only a JSON array is read as a whole.

    Formats are known by suffix, each but Parquet also with `.gz`. `.csv` has commas between cells, or if there are none
    in its first line semicolons or tabs; cells may be quoted as Python's `csv` and pandas quote them. `.tsv` and `.txt`
    have tabs, and a quotation mark is a character like any other. `.json` is one array of objects, `.jsonl` has an
    object per line. Text is UTF-8.
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
    """Return the first row of a TSV or CSV file, the keys of a JSON file's first object, or Parquet's columns."""
    file = source_of(path)
    if _suffix(file) in DELIMITED:
        return tuple(_first_row(file)[0])
    if _suffix(file) == ".parquet":
        with _parquet_file(file) as table:
            return tuple(table.schema_arrow.names)
    for _, first in _objects(file):
        return tuple(first)
    raise DataError(f"{file}: no rows")


def is_table(path: str | Path) -> bool:
    """Return whether a file's suffix is that of a table; `.txt` files count as text."""
    return _suffix(Path(path)) in set(SUFFIXES) - {".txt"}


def _suffix(file: Path) -> str:
    return Path(file.name.removesuffix(".gz")).suffix


# CSV and TSV.


def _first_row(file: Path) -> tuple[list[str], str]:
    """Return the cells of a file's first row, and its delimiter."""
    lines = (line for line in read_lines(file) if line.strip("\n"))
    first = next(lines)
    if _suffix(file) != ".csv":
        return first.removesuffix("\n").split("\t"), "\t"
    delimiter = next((one for one in ",;\t" if one in first), ",")
    csv.field_size_limit(BLOCK)
    try:
        return next(csv.reader(itertools.chain([first], lines), delimiter=delimiter)), delimiter
    except csv.Error as error:
        raise DataError(f"{file}: row 1: {error}") from None


def _delimited(file: Path, columns: Columns, rules: Rules) -> Iterator[Row]:
    first, delimiter = _first_row(file)
    has_header = not all(column.isdecimal() for column in columns.values())
    if has_header:
        wanted = {field: _index(file, first, column) for field, column in columns.items()}
    else:
        wanted = {field: int(column) for field, column in columns.items()}
        missing = next((number for number in wanted.values() if number >= len(first)), None)
        if missing is not None:
            raise DataError(f"{file}: row 1: no column {missing}, there are {len(first)}, counted from 0")
    unquoted = _suffix(file) != ".csv" and not rules.raw
    for number, cells in _cells(file, len(first), delimiter, rules):
        if number == 1 and has_header:
            continue
        values = {field: cells[index].replace("\r\n", "\n") for field, index in wanted.items()}
        if unquoted and any(map(_is_quoted, values.values())):
            raise DataError(f"{file}: row {number}: a quoted cell; {QUOTED}")
        yield Row(f"{file}: row {number}", values)


QUOTED = "rename the file to .csv if its cells are quoted"


def _is_quoted(cell: str) -> bool:
    return len(cell) > 2 and cell[0] == cell[-1] == '"' and '""' in cell[1:-1]


def _cells(file: Path, width: int, delimiter: str, rules: Rules) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the cells of every row that is not blank, with its number from 1."""
    import pyarrow
    from pyarrow import csv as arrow

    names, skipped, number = [str(index) for index in range(width)], set[int](), 0
    quotes = _suffix(file) == ".csv"

    def on_other_width(row: arrow.InvalidRow) -> str:
        skipped.add(row.number)
        return "skip" if rules.skips else "error"

    read = arrow.ReadOptions(column_names=names, block_size=BLOCK, use_threads=False)
    parse = arrow.ParseOptions(
        delimiter=delimiter,
        quote_char='"' if quotes else False,
        newlines_in_values=quotes,
        invalid_row_handler=on_other_width,
    )
    convert = arrow.ConvertOptions(column_types=dict.fromkeys(names, pyarrow.string()), strings_can_be_null=False)
    with reading(file), opened(file) as stream:
        try:
            for batch in arrow.open_csv(stream, read_options=read, parse_options=parse, convert_options=convert):
                for cells in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    number = next(one for one in itertools.count(number + 1) if one not in skipped)
                    yield number, cells
        except pyarrow.ArrowException as error:
            said = _told(first_line(error))
            raise DataError(f"{file}: {said}" + (f"; {QUOTED}" if '"' in said and not quotes else "")) from None


def _told(error: str) -> str:
    """Return pyarrow's message as ours: the row first."""
    if "straddling" in error:
        return f"a row of more than {BLOCK // 2**20} MB; is a quotation mark left open?"
    found = re.search(r"Row #(\d+): (.*)", error)
    place, reason = ("", error) if found is None else (f"row {found[1]}: ", found[2])
    return place + ("not UTF-8; save the file as UTF-8" if "invalid UTF8" in reason else reason)


def _index(file: Path, names: list[str], column: str) -> int:
    if column not in names:
        raise DataError(f"{file}: {unknown_name('column', column, names)}")
    if names.count(column) > 1:
        raise DataError(f"{file}: {names.count(column)} columns are named {column!r}")
    return names.index(column)


# JSON and Parquet.


def _named(file: Path, columns: Columns) -> Iterator[Row]:
    for place, entry in _records(file, columns) if _suffix(file) == ".parquet" else _objects(file):
        for column in columns.values():
            if column not in entry:
                raise DataError(f"{place}: {unknown_name('key', column, entry)}")
        cells = {field: entry[column] for field, column in columns.items()}
        if "label" in cells and (cells["label"] is None or cells["label"] != cells["label"]):
            cells["label"] = ""  # no label: null, or NaN among numbers
        yield Row(place, {field: _as_text(cell, f"{place}: {columns[field]}") for field, cell in cells.items()})


def _objects(file: Path) -> Entries:
    """Yield the objects of a JSON array or of JSON lines, with their places."""
    if _suffix(file) == ".jsonl":
        for number, line in enumerate(read_lines(file), start=1):
            place = f"{file}: row {number}"
            if line.strip():
                yield place, _object(place, parse_json(line.strip(), place))
        return
    entries = parse_json(read_text(file), str(file))
    if not isinstance(entries, list):
        squad = isinstance(entries, dict) and "data" in entries
        hint = f"; a task of questions in SQuAD's format is squad:{file}" if squad else ""
        raise DataError(f"{file}: expected an array of objects{hint}")
    for number, entry in enumerate(entries, start=1):
        yield f"{file}: row {number}", _object(f"{file}: row {number}", entry)


def _object(place: str, entry: Any) -> Mapping[str, Any]:
    if not isinstance(entry, dict):
        raise DataError(f"{place}: expected an object, got {type(entry).__name__}")
    return entry


@contextlib.contextmanager
def _parquet_file(file: Path) -> Iterator[ParquetFile]:
    """Open a Parquet file."""
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    with reading(file), file.open("rb") as stream:
        try:
            yield ParquetFile(stream)
        except ArrowException as error:
            raise DataError(f"{file}: not a Parquet file that can be read ({first_line(error)})") from None


def _records(file: Path, columns: Columns) -> Entries:
    """Yield the rows of a Parquet file with these columns, and their places."""
    wanted, number = list(dict.fromkeys(columns.values())), itertools.count(1)
    with _parquet_file(file) as table:
        for column in wanted:
            _index(file, table.schema_arrow.names, column)
        for batch in table.iter_batches(PARQUET_ROWS, columns=wanted):
            for index in range(batch.num_rows):
                yield f"{file}: row {next(number)}", {name: _value(batch.column(name)[index]) for name in wanted}


def _value(cell: Any) -> Any:
    """Return the value of a cell of a Parquet file; the cell itself where Python has no such value."""
    try:
        return cell.as_py()
    except ValueError:  # times to the nanosecond
        return cell


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
