"""The user's own text files."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

from headjax.data.passages import Document
from headjax.errors import DataError

SUFFIXES = (".md", ".txt")
"""What a folder is searched for."""


def text_files(paths: str | Path | Sequence[str | Path]) -> list[Document]:
    r"""Reads text files as UTF-8, one document each, in the order of their paths; none twice.

    A byte order mark is dropped and `\r\n` becomes `\n`.

    Args:
        paths: each a file of any name, a folder that is searched (its folders too, hidden ones left out) for `*.txt`
            and `*.md`, or a glob pattern.

    Raises:
        DataError: a path that does not exist or matches nothing, a file that is empty, binary, no UTF-8 or cannot be
            read; the message starts with it.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise DataError("path: no text files given")
    files = dict.fromkeys(file for path in given for file in _find(Path(path).expanduser()))
    return [Document(str(file), _read(file)) for file in files]


def _find(path: Path) -> list[Path]:
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file()]
        files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(path).parts)]
        if not files:
            raise DataError(f"{path}: no {' or '.join('*' + suffix for suffix in SUFFIXES)} file in this folder")
        return sorted(files)
    if path.exists():
        return [path]
    if glob.has_magic(str(path)):
        files = [Path(match) for match in glob.glob(str(path), recursive=True) if Path(match).is_file()]
        if not files:
            raise DataError(f"{path}: no file matches this pattern")
        return sorted(files)
    raise DataError(f"{path}: no such file or folder")


def _read(file: Path) -> str:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from None
    if b"\0" in data:
        raise DataError(f"{file}: binary, not text: zero byte at offset {data.index(0)}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{file}: line {line}, byte offset {error.start}: not UTF-8 ({error.reason})") from None
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if not text.strip():
        raise DataError(f"{file}: empty, there is no text in it")
    return text
