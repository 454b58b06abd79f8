"""Tables of the user's files: CSV, TSV, JSON, JSON lines, Parquet and Arrow; values are text, or lists of texts."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headjax.core.errors import DataError
from headjax.core.fields import unknown_name
from headjax.data.files import suffix_of
from headjax.data.rows import Row
from headjax.storage.files import check_characters, first_line, parse_json, read_lines, read_text, reading
from headjax.storage.hub import source_of

DELIMITED = (".csv", ".tsv", ".txt")
"""Suffixes of tables of cells; the others are of named values."""

ARROW = (".parquet", ".arrow")
SUFFIXES = (*DELIMITED, ".json", ".jsonl", *ARROW)
"""Suffixes of tables."""

ROWS = 1024
"""Rows of a Parquet file that are read at a time."""

CELL = 2**31 - 1
"""Most characters of a cell of a CSV file."""

Columns = Mapping[str, str]
"""For each field of the rows its column: a name in the header, a key, or a number from 0 for a file without header."""

Entries = Iterator[tuple[str, Mapping[str, Any]]]
"""Rows of a file with named values, and before each its place."""


def is_table(path: str | Path) -> bool:
    """Return whether a file's suffix is that of a table; `.txt` files count as text."""
    return suffix_of(Path(path)) in set(SUFFIXES) - {".txt"}


def table_rows(
    path: str | Path, columns: Columns, *, lists: Collection[str] = (), skips: bool = False
) -> Iterator[Row]:
    """Yield the rows of a table, all values as text, those of the fields `lists` as tuples of texts.

    Formats are known by suffix, those of text also with `.gz`. `.csv` has commas between cells, or if there are none in
    its first line semicolons or tabs; cells may be quoted. `.tsv` and `.txt` have tabs, and a quotation mark is a
    character like any other; a row with another number of cells is an error, or with `skips` left out. `.json` is one
    array of objects, `.jsonl` has an object per line; `.arrow` is a file of the library `datasets`. Text is UTF-8.
    """
    file = source_of(path)
    suffix = suffix_of(file)
    if suffix not in SUFFIXES:
        raise DataError(f"{file}: a table's name ends in one of {', '.join(SUFFIXES)}, also with .gz")
    row = None
    for place, entry in _delimited(file, columns, skips) if suffix in DELIMITED else _named(file, columns):
        values: dict[str, Any] = {}
        for field, cell in entry.items():
            where = f"{place}: {columns[field]}"
            values[field] = _texts(cell, where) if field in lists else _text(cell, where, field == "label")
        row = Row(place, values)
        yield row
    if row is None:
        raise DataError(f"{file}: no rows")


def header(path: str | Path) -> tuple[str, ...]:
    """Return the first row of a TSV or CSV file, the keys of a JSON file's first object, or the columns' names."""
    file = source_of(path)
    if suffix_of(file) in DELIMITED:
        return tuple(next(_cells(file))[1])
    if suffix_of(file) in ARROW:
        with _arrow_file(file) as (schema, _):
            return tuple(schema.names)
    for _, first in _objects(file):
        return tuple(first)
    raise DataError(f"{file}: no rows")


def has_lists(path: str | Path, column: str) -> bool:
    """Return whether a column of a table holds lists."""
    file = source_of(path)
    if suffix_of(file) in DELIMITED:
        return False
    return any(isinstance(entry[column], list) for _, entry in itertools.islice(_named(file, {column: column}), 1))


# CSV and TSV.


def _delimited(file: Path, columns: Columns, skips: bool) -> Entries:
    rows = _cells(file)
    number, first = next(rows)
    if all(column.isdecimal() for column in columns.values()):
        rows = itertools.chain([(number, first)], rows)
        wanted = {field: int(column) for field, column in columns.items()}
        missing = next((column for column in wanted.values() if column >= len(first)), None)
        if missing is not None:
            raise DataError(f"{file}: row {number}: no column {missing}, there are {len(first)}, counted from 0")
    else:
        wanted = {field: _index(file, first, column) for field, column in columns.items()}
    for number, cells in rows:
        if len(cells) == len(first):
            yield f"{file}: row {number}", {field: cells[i] for field, i in wanted.items()}
        elif not skips:
            quoted = suffix_of(file) != ".csv" and any('"' in cell for cell in cells)
            hint = "; rename the file to .csv if its cells are quoted" if quoted else ""
            raise DataError(f"{file}: row {number}: {len(cells)} cells where others have {len(first)}{hint}")


def _cells(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of every row that is not blank, with its number from 1."""
    lines, number, empty = read_lines(file), 0, True
    if suffix_of(file) == ".csv":
        first = next(line for line in read_lines(file) if line.strip("\n"))
        csv.field_size_limit(CELL)
        rows: Iterator[list[str]] = csv.reader(
            lines, delimiter=next((one for one in ",;\t" if one in first), ","), strict=True
        )
    else:
        rows = (line.removesuffix("\n").split("\t") for line in lines)
    try:
        for number, cells in enumerate(rows, start=1):
            if cells not in ([], [""]):
                empty = False
                yield number, cells
    except csv.Error as error:
        raise DataError(f"{file}: row {number + 1}: {error}; is a quotation mark left open?") from None
    if empty:
        raise DataError(f"{file}: no rows")


def _index(file: Path, names: Sequence[str], column: str) -> int:
    if column not in names:
        raise DataError(f"{file}: {unknown_name('column', column, names)}")
    if names.count(column) > 1:
        raise DataError(f"{file}: {names.count(column)} columns are named {column!r}")
    return names.index(column)


# JSON, Parquet and Arrow.


def _named(file: Path, columns: Columns) -> Entries:
    for place, entry in _records(file, columns) if suffix_of(file) in ARROW else _objects(file):
        for column in columns.values():
            if column not in entry:
                raise DataError(f"{place}: {unknown_name('key', column, entry)}")
        yield place, {field: entry[column] for field, column in columns.items()}


def _objects(file: Path) -> Entries:
    """Yield the objects of a JSON array or of JSON lines, with their places."""
    if suffix_of(file) == ".jsonl":
        for number, line in enumerate(read_lines(file), start=1):
            place = f"{file}: row {number}"
            if line.strip():
                yield place, _object(place, parse_json(line.strip(), place))
        return
    entries = parse_json(read_text(file), str(file))
    if not isinstance(entries, list):
        squad = isinstance(entries, dict) and "data" in entries
        raise DataError(f"{file}: expected an array of objects{f'; questions are questions:{file}' if squad else ''}")
    for number, entry in enumerate(entries, start=1):
        yield f"{file}: row {number}", _object(f"{file}: row {number}", entry)


def _object(place: str, entry: Any) -> Mapping[str, Any]:
    if not isinstance(entry, dict):
        raise DataError(f"{place}: expected an object, got {type(entry).__name__}")
    return entry


@contextlib.contextmanager
def _arrow_file(file: Path, columns: list[str] | None = None) -> Iterator[tuple[Any, Iterator[Any]]]:
    """Open a Parquet file or an Arrow stream: its schema and its batches of rows."""
    import pyarrow
    from pyarrow import parquet

    with reading(file), file.open("rb") as stream:
        try:
            if suffix_of(file) == ".parquet":
                table = parquet.ParquetFile(stream)
                yield table.schema_arrow, table.iter_batches(ROWS, columns=columns)
            else:
                batches = pyarrow.ipc.open_stream(stream)
                yield batches.schema, iter(batches)
        except pyarrow.ArrowException as error:
            raise DataError(f"{file}: cannot be read ({first_line(error)})") from None


def _records(file: Path, columns: Columns) -> Entries:
    """Yield the rows of a Parquet or Arrow file with these columns, and their places."""
    wanted, number = list(dict.fromkeys(columns.values())), itertools.count(1)
    with _arrow_file(file, wanted) as (schema, batches):
        for column in wanted:
            _index(file, schema.names, column)
        classes = {name: _class_names(schema, name) for name in wanted}
        for batch in batches:
            for index in range(batch.num_rows):
                values = {name: _value(batch.column(name)[index], classes[name]) for name in wanted}
                yield f"{file}: row {next(number)}", values


def _class_names(schema: Any, column: str) -> tuple[str, ...]:
    """Return the names of a column's classes as the library `datasets` writes them beside the numbers; none if not."""
    data = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    feature = data.get("info", {}).get("features", {}).get(column, {})
    feature = feature[0] if isinstance(feature, list) else feature.get("feature", feature)
    return tuple(feature.get("names") or ())


def _value(cell: Any, classes: tuple[str, ...]) -> Any:
    """Return the value of a cell, classes by name; the cell itself where Python has no such value."""

    def named(one: Any) -> Any:
        return classes[one] if isinstance(one, int) and 0 <= one < len(classes) else one

    try:
        value = cell.as_py()
    except ValueError:  # times to the nanosecond
        return cell
    return [named(one) for one in value] if isinstance(value, list) else named(value)


def _text(value: Any, place: str, may_miss: bool = False) -> str:
    """Return a cell as text; a label that is missing (null, or NaN among numbers) is empty."""
    if may_miss and (value is None or (isinstance(value, float) and math.isnan(value))):
        return ""
    if isinstance(value, str):
        return check_characters(value, place)
    if value is None:
        raise DataError(f"{place}: no value, found null")
    if isinstance(value, float) and not math.isfinite(value):
        raise DataError(f"{place}: not a finite number, found {value}")
    if isinstance(value, int | float):
        return json.dumps(value)
    raise DataError(f"{place}: neither text nor a number, but {type(value).__name__}")


def _texts(value: Any, place: str) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(_text(one, place) for one in value)
    return tuple(_text(value, place, may_miss=True).split())
