"""Tables of examples: TSV, CSV, JSON and JSON lines, read row by row with the line that each row came from."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headjax.core.errors import DataError
from headjax.core.files import read_text
from headjax.core.serialize import unknown_name
from headjax.data.text_files import read_lines

csv.field_size_limit(2**31 - 1)


class Row(NamedTuple):
    """An example as it stands in a file.

    Attributes:
        place: file and line, to start an error message with.
        values: the columns asked for.
    """

    place: str
    values: tuple[str, ...]


def read_table(path: str | Path, columns: Sequence[str]) -> list[Row]:
    """The given columns of every row of a file, see `table_rows`."""
    return list(table_rows(path, columns))


def table_rows(path: str | Path, columns: Sequence[str]) -> Iterator[Row]:
    """The given columns of every row of a file, one after another; only a JSON array is read whole.

    Formats go by suffix, each also with `.gz`: `.csv` (commas, with quotes), `.tsv` and `.txt` (tabs, where a quotation
    mark is only a character), `.json` (one array of objects), `.jsonl` (one object a line).

    Args:
        path: the file.
        columns: names from the header line or the objects' keys; numbers from 0 for a file without a header.

    Raises:
        DataError: a file that cannot be used, a column that it lacks, a row with another number of columns; the message
            starts with the file and, where there is one, the line.
    """
    file = Path(path).expanduser()
    suffix = _suffix(file)
    if suffix not in READERS:
        known = ", ".join(READERS)
        raise DataError(f"{file}: a table's name ends in one of {known}, also with .gz")
    row = None
    for row in READERS[suffix](file, columns):
        yield row
    if row is None:
        raise DataError(f"{file}: no rows")


def header(path: str | Path) -> tuple[str, ...]:
    """The cells of a TSV or CSV file's first line, or the keys of a JSON file's first object.

    Raises:
        DataError: a file that cannot be used.
    """
    file = Path(path).expanduser()
    suffix = _suffix(file)
    if suffix in (".json", ".jsonl"):
        return tuple(next(_objects(file, suffix == ".jsonl"))[1])
    return tuple(next(_cells(file, "," if suffix == ".csv" else "\t"))[1])


def _suffix(file: Path) -> str:
    """The suffix that names the format."""
    return Path(file.name.removesuffix(".gz")).suffix


def _delimited(file: Path, columns: Sequence[str], delimiter: str) -> Iterator[Row]:
    rows = _cells(file, delimiter)
    if all(column.isdecimal() for column in columns):
        line, first = next(rows)
        found, width, wanted = [(line, first)], len(first), [int(column) for column in columns]
        missing = next((column for column in wanted if column >= width), None)
        if missing is not None:
            raise DataError(f"{file}: line {line}: no column {missing}, there are {width}, counted from 0")
    else:
        line, names = next(rows)
        found, width, wanted = [], len(names), [_index(file, names, column) for column in columns]
    for line, cells in itertools.chain(found, rows):
        if len(cells) != width:
            raise DataError(f"{file}: line {line}: {len(cells)} columns where the first line has {width}")
        yield Row(f"{file}: line {line}", tuple(cells[column] for column in wanted))


def _cells(file: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The cells of every row that is not blank, with the line that it starts on."""
    lines = read_lines(file)
    if delimiter == ",":
        reader = csv.reader(lines, strict=True)
    else:
        reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    line = 1
    try:
        for cells in reader:
            if cells:
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{file}: line {line}: {error}") from None


def _index(file: Path, names: Sequence[str], column: str) -> int:
    if column not in names:
        raise DataError(f"{file}: {unknown_name('column', column, names)}")
    return list(names).index(column)


def _json(file: Path, columns: Sequence[str], lines: bool) -> Iterator[Row]:
    for place, entry in _objects(file, lines):
        for column in columns:
            if column not in entry:
                raise DataError(f"{place}: {unknown_name('key', column, entry)}")
        yield Row(place, tuple(_text(entry[column]) for column in columns))


def _objects(file: Path, lines: bool) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects of a JSON array or of JSON lines, with their places."""
    number = 0
    try:
        if lines:
            for number, line in enumerate(read_lines(file), start=1):
                if line.strip():
                    yield f"{file}: line {number}", _object(f"{file}: line {number}", json.loads(line))
            return
        entries = json.loads(read_text(file))
    except json.JSONDecodeError as error:
        at = number if lines else error.lineno
        raise DataError(f"{file}: line {at}: not JSON ({error.msg})") from None
    if not isinstance(entries, list):
        raise DataError(f"{file}: expected an array of objects")
    for number, entry in enumerate(entries):
        yield f"{file}: entry {number}", _object(f"{file}: entry {number}", entry)


def _object(place: str, entry: Any) -> Mapping[str, Any]:
    if not isinstance(entry, dict):
        raise DataError(f"{place}: expected an object, got {type(entry).__name__}")
    return entry


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


READERS: Mapping[str, Callable[[Path, Sequence[str]], Iterator[Row]]] = {
    ".csv": lambda file, columns: _delimited(file, columns, ","),
    ".tsv": lambda file, columns: _delimited(file, columns, "\t"),
    ".txt": lambda file, columns: _delimited(file, columns, "\t"),
    ".json": lambda file, columns: _json(file, columns, False),
    ".jsonl": lambda file, columns: _json(file, columns, True),
}
"""Readers by suffix: from (file, columns) to rows."""
