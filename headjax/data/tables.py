"""Tables of the user's files: CSV, TSV, JSON, JSON lines, Parquet and Arrow; values are text, or lists of texts."""

from __future__ import annotations

import contextlib
import csv
import functools
import itertools
import json
import math
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from headjax.core.errors import DataError
from headjax.core.fields import unknown_name
from headjax.data.files import suffix_of
from headjax.data.rows import Row
from headjax.storage.files import check_characters, first_line, parse_json, read_lines, read_text, reading
from headjax.storage.paths import source_of

DELIMITED = (".csv", ".tsv", ".txt")  # suffixes of tables of cells; the others are of named values
ARROW = (".parquet", ".arrow")
SUFFIXES = (*DELIMITED, ".json", ".jsonl", *ARROW)  # suffixes of tables
ROWS = 1024  # rows of a Parquet file that are read at a time
SEEN = 64  # rows of a table that are looked at to tell whether its first row is one of them
CELL = 2**31 - 1  # most characters of a cell of a CSV file
_DOUBLED = '""'

# A table as it is read: the names of its columns, and its rows, each with its number from 1 and its cells.
Table = tuple[tuple[str, ...], Iterator[tuple[int, Mapping[str, Any]]]]


def is_table(path: str | Path) -> bool:
    """Return whether a file's suffix is that of a table; `.txt` files count as text."""
    return suffix_of(Path(path)) in set(SUFFIXES) - {".txt"}


def table_rows(path: str | Path, columns: Mapping[str, str], *, lists: Collection[str] = ()) -> Iterator[Row]:
    """Yield the rows of a table. Values are text, of the fields `lists` tuples of texts.

    The column of a field is a name in the header, a key, or a number from 0 for a file without header.
    The suffix tells the format; formats of text are UTF-8 and may be packed (`.gz`):

        .csv         cells between commas, or between semicolons or tabs if the first line has no comma; may be quoted
        .tsv, .txt   cells between tabs; quoted if all cells that begin with a quotation mark are
        .json        one array of objects
        .jsonl       an object a line
        .arrow       a file of the library `datasets`
        .parquet     a Parquet file
    """
    file, selected = source_of(path), [*dict.fromkeys(columns.values())]
    with _opened(file, selected) as (names, rows):
        for column in selected:
            if column not in names:
                raise DataError(f"{file}: {unknown_name('column', column, names)}")
            if names.count(column) > 1:
                raise DataError(f"{file}: {names.count(column)} columns are named {column!r}")
        number = 0
        for number, cells in rows:
            place = f"{file}: row {number}"
            values: dict[str, Any] = {}
            for field, column in columns.items():
                if column not in cells:
                    raise DataError(f"{place}: {unknown_name('key', column, cells)}")
                cell, where = cells[column], f"{place}: {column}"
                if field not in lists:
                    values[field] = _text(cell, where, field == "label")
                elif isinstance(cell, list):
                    values[field] = tuple(_text(item, where) for item in cell)
                else:
                    values[field] = tuple(_text(cell, where, may_miss=True).split())
            yield Row(place, values, columns)
        if not number:
            raise DataError(f"{file}: no rows")


def header(path: str | Path) -> tuple[str, ...]:
    """Return the names of a table's columns: its first row, or the keys of its first object."""
    with _opened(source_of(path)) as (names, _):
        return names


def find_column(names: Iterable[str], header: Collection[str]) -> str:
    """Return the column of the table under one of these names, case and blanks ignored; empty for none."""
    columns = {name.strip().casefold(): name for name in reversed([*header])} | {name: name for name in header}
    return next((columns[key] for name in names for key in (name, name.casefold()) if key in columns), "")


def names_of_columns(path: str | Path) -> str:
    """Return what to name as the columns of a table of labelled texts: numbers from 0 where it has no header.

    It has none where the first row has a number, or in some column a text that other rows repeat there.
    """
    file = source_of(path)
    rows = itertools.islice(_cells(file), SEEN) if suffix_of(file) in DELIMITED else ()
    columns = [*zip(*(cells for _, cells in rows), strict=False)]
    if len(columns) < 2 or not any(is_number(first) or first in others for first, *others in columns):
        return "TEXT,LABEL"
    text = max(range(len(columns)), key=lambda i: sum(map(len, columns[i])))
    label = min((i for i in range(len(columns)) if i != text), key=lambda i: (len({*columns[i]}), -i))
    return f"{text},{label}"


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def has_lists(path: str | Path, column: str) -> bool:
    """Return whether a column of a table holds lists."""
    with _opened(source_of(path), [column]) as (_, rows):
        _, cells = next(rows, (0, {}))
        return isinstance(cells.get(column), list)


def _opened(file: Path, columns: list[str] | None = None) -> contextlib.AbstractContextManager[Table]:
    """Open a table; of Parquet only the wanted columns are read."""
    suffix = suffix_of(file)
    if suffix not in SUFFIXES:
        raise DataError(f"{file}: a table's name ends in one of {', '.join(SUFFIXES)}, also with .gz")
    if suffix in ARROW:
        return _arrow_table(file, columns)
    rows: Iterator[tuple[int, Any]] = _cells(file) if suffix in DELIMITED else _objects(file)
    if (first := next(rows, None)) is None:
        raise DataError(f"{file}: no rows")
    if suffix not in DELIMITED:
        return contextlib.nullcontext((tuple(first[1]), itertools.chain([first], rows)))
    numbered = bool(columns) and all(column.isdecimal() for column in columns or ())
    names = tuple(map(str, range(len(first[1])))) if numbered else tuple(first[1])

    def by_name(number: int, cells: list[str]) -> tuple[int, dict[str, str]]:
        if len(cells) != len(names):
            raise DataError(f"{file}: row {number}: {len(cells)} cells where others have {len(names)}")
        return number, dict(zip(names, cells, strict=True))

    body = itertools.chain([first], rows) if numbered else rows
    return contextlib.nullcontext((names, itertools.starmap(by_name, body)))


def _cells(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of every row that is not blank, with its number."""
    number = 0
    if suffix_of(file) == ".csv":
        first = re.sub('"[^"]*"', "", next(line for line in read_lines(file) if line.strip()))
        rows = _quoted_rows(file, next((delimiter for delimiter in ",;\t" if delimiter in first), ","))
    else:
        with reading(file):
            stat: Any = file.stat()
        inner = _inner_mark(file, float(stat.mtime if hasattr(stat, "mtime") else stat.st_mtime))
        if inner:
            rows = _quoted_rows(file, "\t", inner)
        else:
            rows = (line.removesuffix("\n").split("\t") for line in read_lines(file))
    try:
        for number, cells in enumerate(rows, start=1):
            if cells not in ([], [""]):
                yield number, cells
    except csv.Error as error:
        raise DataError(f"{file}: row {number + 1}: {error}; is a quotation mark left open?") from None


def _quoted_rows(file: Path, delimiter: str, inner: str = _DOUBLED) -> Iterator[list[str]]:
    """Return the rows of a file in which `inner` stands for a quotation mark inside a quoted cell."""
    csv.field_size_limit(CELL)
    lines = (line.replace(inner, _DOUBLED) for line in read_lines(file))
    return csv.reader(lines, delimiter=delimiter, strict=True)


@functools.lru_cache(maxsize=64)
def _inner_mark(file: Path, modified: float) -> str:
    """Return what stands for a quotation mark inside cells, if each that begins with one is quoted so, and say which.

    It is empty where quotation marks are text, or where no cell begins with one.
    """
    if not any(line.startswith('"') or '\t"' in line for line in read_lines(file)):
        return ""
    for inner in (_DOUBLED, '\\"'):  # of pandas, and of R's write.table
        with contextlib.suppress(csv.Error):
            for _ in _quoted_rows(file, "\t", inner):
                pass
            warnings.warn(f"{file}: quotation marks enclose cells, as pandas and R write them", stacklevel=2)
            return inner
    warnings.warn(f"{file}: quotation marks are text, since not all of them enclose cells", stacklevel=2)
    return ""


def _objects(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if suffix_of(file) == ".jsonl":
        lines = ((number, line.strip()) for number, line in enumerate(read_lines(file), start=1) if line.strip())
        entries: Any = ((number, parse_json(line, f"{file}: row {number}")) for number, line in lines)
    else:
        entries = parse_json(read_text(file), str(file))
        if not isinstance(entries, list):
            raise DataError(f"{file}: expected an array of objects")
        entries = enumerate(entries, start=1)
    for number, entry in entries:
        if not isinstance(entry, dict):
            raise DataError(f"{file}: row {number}: expected an object, got {type(entry).__name__}")
        yield number, entry


@contextlib.contextmanager
def _arrow_table(file: Path, columns: list[str] | None) -> Iterator[Table]:
    """Open a Parquet file, or an Arrow stream of the library `datasets`."""
    import pyarrow
    from pyarrow import parquet

    with reading(file), file.open("rb") as stream:
        try:
            if suffix_of(file) == ".parquet":
                table = parquet.ParquetFile(stream)
                schema, batches = table.schema_arrow, table.iter_batches(ROWS, columns=columns)
            else:
                batches = pyarrow.ipc.open_stream(stream)
                schema = batches.schema
            yield tuple(schema.names), _records(schema, batches)
        except pyarrow.ArrowException as error:
            raise DataError(f"{file}: cannot be read ({first_line(error)})") from None


def _records(schema: Any, batches: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the rows of batches, classes by name, as the library `datasets` writes them beside the numbers."""
    described = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    classes: dict[str, Mapping[int, str]] = {}
    for name in schema.names:
        feature = described.get(name, {})
        inner = feature[0] if isinstance(feature, list) else feature.get("feature", feature)
        classes[name] = dict(enumerate(inner.get("names") or ()))
    number = itertools.count(1)
    for batch in batches:
        columns = {name: (batch.column(name), classes[name]) for name in batch.schema.names}
        for index in range(batch.num_rows):
            yield next(number), {name: _value(column[index], names) for name, (column, names) in columns.items()}


def _value(cell: Any, classes: Mapping[int, str]) -> Any:
    """Return the value of a cell, classes by name; the cell itself where Python has no such value."""
    try:
        value = cell.as_py()
    except ValueError:  # times to the nanosecond
        return cell
    if not classes:
        return value
    return [classes.get(each, each) for each in value] if isinstance(value, list) else classes.get(value, value)


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
