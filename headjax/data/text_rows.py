"""Text as rows: documents, lines, pairs of sentences, questions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headjax.core.errors import DataError
from headjax.core.files import read_text
from headjax.data.documents import Document
from headjax.data.rows import Split, TaskRow
from headjax.data.tables import table_rows
from headjax.data.text_files import count_lines, read_lines

PACKED = ("", ".gz")
TABLES = (".tsv", ".csv", ".json", ".jsonl")


def document_rows(found: Mapping[Split, Sequence[Document]]) -> dict[Split, list[TaskRow]]:
    """Return documents as rows."""
    return {name: [TaskRow(one.name, {"text": one.text}) for one in some] for name, some in found.items()}


def text_lines(file: Path) -> Iterator[TaskRow]:
    """Every line of a text file that is not blank.

    Raises:
        DataError: a file that cannot be used.
    """
    for number, line in enumerate(read_lines(file), start=1):
        if line.strip():
            yield TaskRow(f"{file}: line {number}", {"text": line.strip()})


def sentence_pairs(path: str, source: str, target: str) -> Iterator[TaskRow]:
    """The pairs of two line-aligned files, or of a table, one after another; none with an empty side.

    Raises:
        DataError: a file that cannot be used, files of different lengths, or no pairs.
    """
    table = path.removesuffix(".gz").endswith(TABLES)
    rows = (row.values for row in table_rows(path, [source, target])) if table else _aligned(path, source, target)
    number = -1
    for number, pair in enumerate(pair for pair in rows if all(side.strip() for side in pair)):
        yield TaskRow(f"{path}: pair {number}", {"source": pair[0].strip(), "target": pair[1].strip()})
    if number < 0:
        raise DataError(f"{path}: no line has text on both sides")


def _aligned(path: str, source: str, target: str) -> Iterator[tuple[str, ...]]:
    files = [_find(f"{path}.{language}") for language in (source, target)]
    lengths = [count_lines(file) for file in files]
    if lengths[0] != lengths[1]:
        raise DataError(f"{files[1]}: {lengths[1]:,} lines, but {files[0].name} has {lengths[0]:,}")
    return zip(*map(read_lines, files), strict=True)


def _find(path: str) -> Path:
    for suffix in PACKED:
        file = Path(f"{path}{suffix}").expanduser()
        if file.is_file():
            return file
    raise DataError(f"{path}: no such file, packed or not")


def read_questions(path: str | Path) -> list[TaskRow]:
    """Return the questions of a SQuAD v1.1 file, with the fields of `QuestionForm`.

    Raises:
        DataError: a file of another format, or without questions; the message starts with the file.
    """
    file = Path(path).expanduser()
    try:
        articles = json.loads(read_text(file))["data"]
        found = [
            _question(file, paragraph["context"], entry)
            for article in articles
            for paragraph in article["paragraphs"]
            for entry in paragraph["qas"]
        ]
    except json.JSONDecodeError as error:
        raise DataError(f"{file}: line {error.lineno}: not JSON ({error.msg})") from None
    except (KeyError, TypeError) as error:
        raise DataError(f"{file}: not in SQuAD's format ({type(error).__name__}: {error})") from None
    if not found:
        raise DataError(f"{file}: no questions")
    return found


def _question(file: Path, context: str, entry: Mapping[str, Any]) -> TaskRow:
    answers = entry["answers"]
    # The order of the fields is part of the hash of prepared rows.
    values = {
        "question": entry["question"].strip(),
        "id": entry["id"],
        "context": context,
        "answers": tuple(one["text"] for one in answers),
        "start": answers[0]["answer_start"] if answers else 0,
    }
    return TaskRow(f"{file}: question {entry['id']}", values)
