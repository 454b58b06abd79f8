"""Text files: which there are, and their lines."""

from __future__ import annotations

import glob
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from headjax.core.errors import DataError
from headjax.core.files import reading

SUFFIXES = (".md", ".txt")
"""What a folder is searched for."""


def find_files(path: str | Path) -> list[Path]:
    """The files that a path stands for, sorted: a file, the text files of a folder, or what matches a glob pattern.

    Raises:
        DataError: there is none; the message starts with the path.
    """
    path = Path(path).expanduser()
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


def read_lines(file: Path) -> Iterator[str]:
    r"""A file's lines as `read_text` has them, each with its `\n` (a last one may have none), read when asked for.

    Raises:
        DataError: what `read_text` raises, once the line is reached.
    """
    offset = 0
    blank: list[str] | None = []  # lines before the first with text
    with reading(file), _opened(file) as stream:
        for number, data in enumerate(stream, start=1):
            if b"\0" in data:
                raise DataError(f"{file}: binary, not text: zero byte at offset {offset + data.index(0)}")
            try:
                line = data.decode("utf-8")
            except UnicodeDecodeError as error:
                at = f"line {number}, byte offset {offset + error.start}"
                raise DataError(f"{file}: {at}: not UTF-8 ({error.reason})") from None
            line = line.removeprefix("\ufeff") if number == 1 else line
            line = f"{line[:-2]}\n" if line.endswith("\r\n") else line
            offset += len(data)
            if blank is None:
                yield line
            elif line.strip():
                yield from (*blank, line)
                blank = None
            else:
                blank.append(line)
    if blank is not None:
        raise DataError(f"{file}: empty, there is no text in it")


def count_lines(file: Path) -> int:
    """How many lines `read_lines` gives, without decoding them.

    Raises:
        DataError: a file that cannot be read.
    """
    lines, last = 0, b"\n"
    with reading(file), _opened(file) as stream:
        while data := stream.read(2**20):
            lines, last = lines + data.count(b"\n"), data[-1:]
    return lines + (last != b"\n")


def _opened(file: Path) -> IO[bytes]:
    return gzip.open(file) if file.suffix == ".gz" else file.open("rb")  # type: ignore[return-value]
