"""Text that every Python installation carries: the source code of its standard library."""

from __future__ import annotations

import contextlib
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from headjax.core.errors import DataError
from headjax.data.documents import document, without_passages
from headjax.data.rows import Row, Rows, RowSource, text_hash

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


def hold_out_files(documents: Sequence[Row], fraction: float) -> Rows:
    """Hold out whole files: those whose name's hash is below the fraction, so the same ones in every Python version.

    Paragraphs of the held-out files that also occur in a training file are dropped.
    """
    sides: tuple[list[Row], list[Row]] = ([], [])
    for one in documents:
        sides[text_hash(one.place) <= fraction].append(one)
    return {"train": RowSource.of(sides[0]), "validation": RowSource.of(without_passages(sides[1], sides[0]))}
