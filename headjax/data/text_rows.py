"""Rows of files that are no tables: documents, lines, aligned translations, SQuAD's questions, CoNLL's words."""

from __future__ import annotations

import contextlib
import itertools
import operator
import re
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headjax.core.errors import DataError
from headjax.data.files import packed_or_plain
from headjax.data.rows import Row, document
from headjax.storage.files import check_characters, parse_json, read_lines, read_text
from headjax.storage.hub import source_of


def whole_text(file: Path) -> Iterator[Row]:
    """Yield all of a text file."""
    yield document(str(file), read_text(file))


_ARTICLE = re.compile(r" = [^=\n].* = *$")

LONGEST = 2**24
"""Number of characters after which a blank line ends a document; after twice as many, any line does."""


def articles(file: Path) -> Iterator[Row]:
    """Yield the documents of a text file: WikiText's articles, or all of it."""
    place, size, found, any_text = str(file), 0, False, False
    held: list[str] = []
    for number, line in enumerate(read_lines(file), start=1):
        heading = _ARTICLE.match(line) and (found or not any_text)
        too_long = size >= LONGEST and (not line.strip() or size >= 2 * LONGEST)
        if (heading and found) or too_long:
            yield document(place, "".join(held))
        if heading or too_long:
            held, size, found = [], 0, found or bool(heading)
            place = f"{file}: line {number}"
        held.append(line)
        size += len(line)
        any_text = any_text or bool(line.strip())
    yield document(place, "".join(held))


def text_lines(file: Path) -> Iterator[Row]:
    """Yield every line of a text file that is not blank."""
    for number, line in enumerate(read_lines(file), start=1):
        if line.strip():
            yield document(f"{file}: line {number}", line.strip())


def aligned_pairs(path: str, source: str, target: str) -> Iterator[Row]:
    """Yield the pairs of lines of `PATH.source` and `PATH.target`, each also packed; those with an empty side not."""
    files = [_file_of(f"{path}.{language}") for language in (source, target)]
    number = 0
    for line, (first, second) in enumerate(itertools.zip_longest(*map(read_lines, files))):
        if first is None or second is None:
            shorter, longer = files if first is None else files[::-1]
            raise DataError(f"{shorter}: {line:,} lines, but {longer.name} has more")
        if first.strip() and second.strip():
            yield Row(f"{path}: pair {number}", {"source": first.strip(), "target": second.strip()})
            number += 1
    if not number:
        raise DataError(f"{path}: no line has text on both sides")


def _file_of(path: str) -> Path:
    file = packed_or_plain(source_of(path))
    if file is None:
        raise DataError(f"{path}: no such file, packed or not")
    return file


def questions(file: Path) -> Iterator[Row]:
    """Yield the questions of a SQuAD v1.1 file, with the fields of `QuestionForm`."""
    whole = parse_json(read_text(file), str(file))
    try:
        found = [
            _question(file, paragraph["context"], entry)
            for article in whole["data"]
            for paragraph in article["paragraphs"]
            for entry in paragraph["qas"]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{file}: not in SQuAD's format ({type(error).__name__}: {error})") from None
    if not found:
        raise DataError(f"{file}: no questions")
    return iter(found)


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


CONLL = (".conll", ".bio", ".iob", ".iob2")
"""Suffixes of files in CoNLL's format."""


def tagged_words(file: Path) -> Iterator[Row]:
    """Yield the sentences of a file in CoNLL's format: a word a line, its tag last, a blank line after each sentence.

    Lines that begin with `-DOCSTART-` or `#` are left out.
    """
    words: list[list[str]] = []
    start = 0
    for number, line in enumerate(itertools.chain(read_lines(file), [""]), start=1):
        cells = line.split()
        if cells and cells[0] != "-DOCSTART-" and not line.startswith("# "):
            if len(cells) < 2:
                raise DataError(f"{file}: line {number}: expected a word and its tag, got {line.strip()!r}")
            start = start if words else number
            words.append(cells)
        elif words and not cells:
            tokens, tags = (tuple(cells[place] for cells in words) for place in (0, -1))
            yield Row(f"{file}: line {start}", {"tokens": tokens, "tags": tags})
            words = []
    if not start:
        raise DataError(f"{file}: no words with tags")


# The source code of Python's standard library.

LIBRARY = Path(sysconfig.get_path("stdlib"))

NOT_READ = frozenset({"test", "tests", "idlelib", "site-packages", "dist-packages", "encodings", "pydoc_data"})
"""Folders whose source is not read: tests, applications, other people's packages, tables of characters, and texts."""


def library_sources() -> list[Row]:
    """Return the Python files of the standard library by their paths, but those of `NOT_READ`.

    Files that are generated for one machine (`_sysconfigdata`), and those that are not UTF-8, are left out, too.
    """
    documents = []
    for file in sorted(LIBRARY.rglob("*.py")):
        relative = file.relative_to(LIBRARY)
        if NOT_READ & set(relative.parts[:-1]) or file.name.startswith("_sysconfigdata"):
            continue
        with contextlib.suppress(OSError, UnicodeDecodeError):
            documents.append(document(relative.as_posix(), file.read_text(encoding="utf-8")))
    if not documents:
        raise DataError(f"{LIBRARY}: this Python carries no library sources; name text files")
    return [one for one in documents if one.values["text"].strip()]


def reference_topics() -> list[Row]:
    """Return the topics of Python's language reference, by name."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise DataError("python: this Python carries no language reference (pydoc_data)") from None
    return [document(f"topics/{name}", topics[name]) for name in sorted(topics)]
