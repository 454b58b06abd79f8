"""Rows of text files: lines, documents, pairs of sentences, questions."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headjax.core.errors import DataError
from headjax.core.files import check_characters, parse_json, read_text
from headjax.data.documents import Document, text_hash
from headjax.data.files import count_lines, read_lines, source_of
from headjax.data.rows import Row, Split
from headjax.data.tables import is_table, table_rows


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
