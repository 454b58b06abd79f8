"""Files of data: the folders in which data sets are looked for, the files of a path, and the lines of a file."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

from headjax.core.errors import DataError
from headjax.core.files import opened, reading
from headjax.core.limits import lines_of
from headjax.core.paths import path_of
from headjax.data.hub_paths import SCHEME, HubPath

ROOT = "HEADJAX_DATA"
"""Environment variable that names the folder in which data sets are looked for."""

TEXT_SUFFIXES = (".md", ".txt")
"""Suffixes of the files that are read when a folder of texts is named."""


def source_of(path: str | os.PathLike[str]) -> Path:
    """Return the path of data to read: of `path_of`, or `hf://datasets/USER/NAME/FILE` on the Hugging Face Hub."""
    if os.fspath(path).startswith(SCHEME):
        return cast(Path, HubPath(path))
    return path_of(path).expanduser()


def local_file(file: Path) -> str:
    """Return the name of a file for libraries that open files themselves; one on the Hub is downloaded."""
    return str(file.local() if isinstance(file, HubPath) else file)


def candidate_folders(path: str, names: Sequence[str]) -> Iterator[Path]:
    """Yield the given folder or, if `path` is empty, the folders of these names under the one that `ROOT` names."""
    if path:
        yield source_of(path)
    elif ROOT in os.environ:
        yield from (source_of(os.environ[ROOT]) / name for name in names)


def missing(task: str, path: str, names: Sequence[str], wanted: str = "its files") -> DataError:
    """Return the error of a data set that was found in none of its candidate folders."""
    if path:
        return DataError(f"{path}: not a folder of {task}: expected {wanted}")
    if ROOT in os.environ:
        return DataError(f"{os.environ[ROOT]}: {ROOT} has no folder {' or '.join(names)} with {wanted}")
    return DataError(f"{task}: set {ROOT} to the folder that holds {names[0]}, or give that one's path")


def data_folder(task: str, path: str, names: Sequence[str], holds: Callable[[Path], bool]) -> Path:
    """Return the first candidate folder that holds a data set.

    Raises:
        DataError: none does.
    """
    for folder in candidate_folders(path, names):
        if holds(folder):
            return folder
    raise missing(task, path, names)


def find_files(path: str | Path) -> list[Path]:
    """Return the files that a path stands for, sorted: a file, the text files of a folder, or a pattern's matches.

    Raises:
        DataError: there is no file; the message starts with the path.
    """
    path = source_of(path)
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.suffix.lower() in TEXT_SUFFIXES and file.is_file()]
        files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(path).parts)]
        if not files:
            raise DataError(f"{path}: no {' or '.join('*' + suffix for suffix in TEXT_SUFFIXES)} file in this folder")
        return sorted(files)
    if path.exists():
        return [path]
    if glob.has_magic(str(path)):
        files = [file for file in _matches(path) if file.is_file()]
        if not files:
            raise DataError(f"{path}: no file matches this pattern")
        return sorted(files)
    raise DataError(f"{path}: no such file or folder")


def _matches(pattern: Path) -> Iterator[Path]:
    if isinstance(pattern, Path):
        return (Path(match) for match in glob.glob(str(pattern), recursive=True))
    folder = next(parent for parent in pattern.parents if not glob.has_magic(str(parent)))
    return folder.glob(pattern.relative_to(folder).as_posix())


def read_lines(file: Path) -> Iterator[str]:
    r"""Yield a file's lines as `read_text` has them, each with its `\n` (the last one may have none).

    Raises:
        DataError: an error that `read_text` would raise, once its line is reached.
    """
    offset = 0
    blank: list[str] | None = []  # lines before the first with text
    with reading(file), opened(file) as stream:
        for number, data in enumerate(lines_of(stream, file), start=1):
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
    """Return the number of lines that `read_lines` yields, without decoding them.

    Raises:
        DataError: a file that cannot be read.
    """
    lines, last = 0, b"\n"
    with reading(file), opened(file) as stream:
        while data := stream.read(2**20):
            lines, last = lines + data.count(b"\n"), data[-1:]
    return lines + (last != b"\n")
