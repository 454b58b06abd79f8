"""Files of data: the folders of data sets, the files of a path, the lines of a file."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from headjax.core.errors import DataError
from headjax.storage.hub import source_of
from headjax.storage.paths import files_below, matches

ROOT = "HEADJAX_DATA"
"""Environment variable that names the folder in which data sets are looked for."""

TEXT_SUFFIXES = (".md", ".txt")
"""Suffixes of the files that are read when a folder of texts is named."""


BOOKKEEPING = ("dataset_dict.json", "dataset_info.json", "state.json")
"""Files in folders of the library `datasets` that hold no rows."""

T = TypeVar("T")


def search(task: str, names: Sequence[str], find: Callable[[Path], T | None], wanted: str) -> T:
    """Return what is found first in the folders of `ROOT` that may hold a data set."""
    if not (root := os.environ.get(ROOT)):
        raise DataError(f"{task}: set {ROOT} to the folder that holds {names[0]}, or give that one's path")
    there = (find(source_of(root) / name) for name in names)
    found = next((one for one in there if one is not None), None)
    if found is None:
        raise DataError(f"{task}: {ROOT} ({root}) has no folder {' or '.join(names)} with {wanted}")
    return found


def find_files(path: str | Path, suffixes: tuple[str, ...] = TEXT_SUFFIXES) -> list[Path]:
    """Return the files that a path stands for, sorted: a file, those of a folder with a suffix, a pattern's matches."""
    path = source_of(path)
    if path.is_dir():
        found, expected = visible(path), f"file in this folder whose name ends in {', '.join(suffixes)}"
        found = (file for file in found if has_suffix(file, suffixes))
    elif path.exists() or not glob.has_magic(str(path)):
        found, expected = iter([path] if path.exists() else []), "such file or folder"
    else:
        found, expected = matches(path), "file matches this pattern"
    files = sorted(file for file in found if not file.is_dir())
    if not files:
        raise DataError(f"{path}: no {expected}")
    return files


def has_suffix(file: Path, suffixes: tuple[str, ...]) -> bool:
    """Return whether a file's name ends in one of the suffixes, or in one with `.gz`."""
    return file.name.lower().removesuffix(".gz").endswith(suffixes)


def suffix_of(file: Path) -> str:
    """Return the suffix of a file's name without `.gz`, in lower case."""
    return Path(file.name.removesuffix(".gz")).suffix.lower()


def packed_or_plain(file: Path) -> Path | None:
    """Return the file, or the one of its name with `.gz`; None if neither is there."""
    return next((one for one in (file, file.with_name(f"{file.name}.gz")) if one.is_file()), None)


def visible(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, sorted, without hidden ones and what the library `datasets` keeps beside data."""
    shown = (name.split("/") for name in files_below(folder))
    parts = (each for each in shown if not any(part.startswith((".", "cache-")) for part in each))
    return (folder.joinpath(*each) for each in parts if each[-1] not in BOOKKEEPING)
