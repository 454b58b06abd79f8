"""Rows of text files: tables (TSV, CSV, JSON, Parquet), lines, documents, pairs of sentences, questions."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headjax.core.errors import DataError
from headjax.core.files import check_characters, first_line, parse_json, read_text, reading
from headjax.core.limits import LINE
from headjax.core.serialize import unknown_name
from headjax.data.documents import Document, text_hash
from headjax.data.files import count_lines, read_lines, source_of
from headjax.data.rows import Row, Split

PARQUET_ROWS = 1024
"""Rows of a Parquet file that are read at a time."""


def table_rows(path: str | Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the rows of a table, all values as text. Only a JSON array is read as a whole.

    Formats are known by suffix, each also with `.gz`: `.csv` (commas, with quotes), `.tsv` and `.txt` (tabs; a
    quotation mark is an ordinary character), `.json` (one array of objects), `.jsonl` (one object per line); and
    `.parquet`, which needs `pyarrow`.

    Args:
        path: the file.
        columns: for each field of the rows its column: a name in the header line, a key of the objects, or a number
            from 0 for a file without a header.

    Raises:
        DataError: a file that cannot be read, a missing column, a row with another number of columns; the message
            starts with the file and, where known, the line.
    """
    file = source_of(path)
    suffix = _suffix(file)
    if suffix not in READERS:
        raise DataError(f"{file}: a table's name ends in one of {', '.join(READERS)}, also with .gz")
    row = None
    for row in READERS[suffix](file, columns):
        yield row
    if row is None:
        raise DataError(f"{file}: no rows")


def hold_out(rows: Sequence[Row], field: str, fraction: float, path: str) -> dict[Split, list[Row]]:
    """Divide rows by the hash of a field, so that rows with the same text stay together and added rows move no other.

    Args:
        rows: the rows of a file.
        field: name of the field whose text is hashed.
        fraction: approximate share of the rows that is held out.
        path: the file, for the error.

    Raises:
        DataError: one side would have no row.
    """
    held = [text_hash(row.values[field]) < fraction for row in rows]
    if all(held) or not any(held):
        raise DataError(f"{path}: too few rows to hold some of them out; name a validation file")
    return {
        "train": [row for row, out in zip(rows, held, strict=True) if not out],
        "validation": [row for row, out in zip(rows, held, strict=True) if out],
    }


def header(path: str | Path) -> tuple[str, ...]:
    """Return the cells of a TSV or CSV file's first line, the keys of a JSON file's first object, or Parquet's columns.

    Raises:
        DataError: a file that cannot be read.
    """
    file = source_of(path)
    suffix = _suffix(file)
    if suffix == ".parquet":
        with _parquet_file(file) as table:
            return tuple(table.schema_arrow.names)
    read = _objects(file, suffix == ".jsonl") if suffix in (".json", ".jsonl") else _cells(file, _delimiter(suffix))
    for _, first in read:
        return tuple(first)
    raise DataError(f"{file}: no rows")


def is_table(path: str | Path) -> bool:
    """Return whether a file's suffix is that of a table; `.txt` files count as text."""
    return _suffix(source_of(path)) in READERS.keys() - {".txt"}


def _delimiter(suffix: str) -> str:
    return "," if suffix == ".csv" else "\t"


def _suffix(file: Path) -> str:
    return Path(file.name.removesuffix(".gz")).suffix


def _delimited(file: Path, columns: Mapping[str, str], delimiter: str) -> Iterator[Row]:
    rows = _cells(file, delimiter)
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
            raise DataError(f"{file}: line {line}: {len(cells)} columns where the first line has {len(first)}")
        yield Row(f"{file}: line {line}", {field: cells[number] for field, number in wanted.items()})


def _cells(file: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of every row that is not blank, with the number of the row's first line."""
    csv.field_size_limit(LINE.bytes())
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


def _json(file: Path, columns: Mapping[str, str], lines: bool) -> Iterator[Row]:
    for place, entry in _objects(file, lines):
        for column in columns.values():
            if column not in entry:
                raise DataError(f"{place}: {unknown_name('key', column, entry)}")
        yield Row(place, {field: _as_text(entry[column], f"{place}: {column}") for field, column in columns.items()})


def _objects(file: Path, lines: bool) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects of a JSON array or of JSON lines, with their places."""
    if lines:
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
        raise DataError(f"{file}: Parquet files are read by pyarrow: pip install 'headjax[data]'") from None
    with reading(file), file.open("rb") as stream:
        try:
            yield ParquetFile(stream)
        except ArrowException as error:
            raise DataError(f"{file}: not a Parquet file that can be read ({first_line(error)})") from None


def _parquet(file: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    with _parquet_file(file) as table:
        names = list(table.schema_arrow.names)
        for column in columns.values():
            _index(file, names, column)
        number = 0
        for batch in table.iter_batches(PARQUET_ROWS, columns=list(dict.fromkeys(columns.values()))):
            for entry in batch.to_pylist():
                place = f"{file}: row {number}"
                values = {field: _as_text(entry[column], f"{place}: {column}") for field, column in columns.items()}
                yield Row(place, values)
                number += 1


def _object(place: str, entry: Any) -> Mapping[str, Any]:
    if not isinstance(entry, dict):
        raise DataError(f"{place}: expected an object, got {type(entry).__name__}")
    return entry


def _as_text(value: Any, place: str) -> str:
    try:
        return check_characters(value, place) if isinstance(value, str) else json.dumps(value)
    except TypeError:
        raise DataError(f"{place}: neither text nor a number, but {type(value).__name__}") from None


READERS: Mapping[str, Callable[[Path, Mapping[str, str]], Iterator[Row]]] = {
    ".csv": lambda file, columns: _delimited(file, columns, ","),
    ".tsv": lambda file, columns: _delimited(file, columns, "\t"),
    ".txt": lambda file, columns: _delimited(file, columns, "\t"),
    ".json": lambda file, columns: _json(file, columns, False),
    ".jsonl": lambda file, columns: _json(file, columns, True),
    ".parquet": _parquet,
}
"""Readers of tables by suffix."""


def document_rows(found: Mapping[Split, Sequence[Document]]) -> dict[Split, list[Row]]:
    """Return documents as rows."""
    return {name: [Row(one.name, {"text": one.text}) for one in some] for name, some in found.items()}


def text_lines(file: Path) -> Iterator[Row]:
    """Yield every line of a text file that is not blank.

    Raises:
        DataError: a file that cannot be read.
    """
    for number, line in enumerate(read_lines(file), start=1):
        if line.strip():
            yield Row(f"{file}: line {number}", {"text": line.strip()})


def translation_pairs(path: str, source: str, target: str) -> Iterator[Row]:
    """Yield the pairs of two line-aligned files, or of a table; pairs with an empty side are left out.

    Raises:
        DataError: a file that cannot be read, files of different lengths, or no pairs.
    """
    pairs = (_pair_table if is_table(path) else _aligned)(path, source, target)
    number = -1
    for number, pair in enumerate(pair for pair in pairs if all(side.strip() for side in pair)):
        yield Row(f"{path}: pair {number}", {"source": pair[0].strip(), "target": pair[1].strip()})
    if number < 0:
        raise DataError(f"{path}: no line has text on both sides")


def _pair_table(path: str, source: str, target: str) -> Iterator[tuple[str, str]]:
    rows = table_rows(path, {"source": source, "target": target})
    return ((row.values["source"], row.values["target"]) for row in rows)


def _aligned(path: str, source: str, target: str) -> Iterator[tuple[str, str]]:
    first, second = (_plain_or_packed(f"{path}.{language}") for language in (source, target))
    lengths = [count_lines(file) for file in (first, second)]
    if lengths[0] != lengths[1]:
        raise DataError(f"{second}: {lengths[1]:,} lines, but {first.name} has {lengths[0]:,}")
    return zip(read_lines(first), read_lines(second), strict=True)


def _plain_or_packed(path: str) -> Path:
    for suffix in ("", ".gz"):
        file = source_of(f"{path}{suffix}")
        if file.is_file():
            return file
    raise DataError(f"{path}: no such file, packed or not")


def read_questions(path: str | Path) -> list[Row]:
    """Return the questions of a SQuAD v1.1 file, with the fields of `QuestionForm`.

    Raises:
        DataError: a file of another format, or without questions; the message starts with the file.
    """
    file = source_of(path)
    whole = parse_json(read_text(file), str(file))
    try:
        articles = whole["data"]
        found = [
            _question(file, paragraph["context"], entry)
            for article in articles
            for paragraph in article["paragraphs"]
            for entry in paragraph["qas"]
        ]
    except KeyError as error:
        raise DataError(f"{file}: not in SQuAD's format ({error} is missing)") from None
    except (TypeError, AttributeError) as error:
        raise DataError(f"{file}: not in SQuAD's format ({type(error).__name__}: {error})") from None
    if not found:
        raise DataError(f"{file}: no questions")
    return found


def _question(file: Path, context: str, entry: Mapping[str, Any]) -> Row:
    answers, place = entry["answers"], f"{file}: question {entry['id']}"
    # The order of the fields is part of the hash of prepared rows.
    values = {
        "question": check_characters(entry["question"].strip(), place),
        "id": entry["id"],
        "context": check_characters(context, place),
        "answers": tuple(check_characters(one["text"], place) for one in answers),
        "start": operator.index(answers[0]["answer_start"]) if answers else 0,
    }
    return Row(place, values)
