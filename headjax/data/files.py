"""Files of data: the folders of data sets, the files of a path, the lines of a file, and the Hugging Face Hub."""

from __future__ import annotations

import functools
import glob
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

from headjax.core.errors import DataError
from headjax.storage.files import first_line
from headjax.storage.paths import files_below, matches, path_of

ROOT = "HEADJAX_DATA"
"""Environment variable that names the folder in which data sets are looked for."""

TEXT_SUFFIXES = (".md", ".txt")
"""Suffixes of the files that are read when a folder of texts is named."""


BOOKKEEPING = ("dataset_dict.json", "dataset_info.json", "state.json")
"""Files in folders of the library `datasets` that hold no rows."""

T = TypeVar("T")


def source_of(path: str | os.PathLike[str]) -> Path:
    """Return the path of data to read: of `path_of`, or of `hf://datasets/USER/NAME/FILE` once it is downloaded."""
    text = os.fspath(path)
    return _downloaded(text) if text.startswith(SCHEME) else path_of(path).expanduser()


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


# The Hugging Face Hub.

SCHEME = "hf://"
"""Beginning of the address of a repository on the Hub."""


@functools.cache
def _downloaded(address: str) -> Path:
    """Return the place of files of the Hub in its cache on this machine, to which they are downloaded."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    found = re.fullmatch(rf"{SCHEME}datasets/([^/@]+/[^/@]+)(?:@([^/]+))?/*(.*?)/*", address)
    if found is None:
        expected = f"{SCHEME}datasets/USER/NAME/FILE (NAME@REVISION for another revision than main)"
        raise DataError(f"{address}: not a data set on the Hub; expected {expected}")
    name, revision, inside = found[1], unquote(found[2] or "") or None, found[3]
    # The Hub's patterns match across folders: a file, all of a folder, and files of one name for several languages.
    patterns = [f"{inside.replace('**/', '*')}{rest}" for rest in ("", "/*", ".*")] if inside else None
    disable_progress_bars()
    try:
        endpoint = os.environ.get("HF_ENDPOINT")
        folder = snapshot_download(
            name, repo_type="dataset", revision=revision, allow_patterns=patterns, endpoint=endpoint
        )
    except Exception as error:
        raise DataError(f"{address}: cannot be downloaded ({first_line(error)}); HF_TOKEN holds your token") from None
    place = Path(folder) / inside
    there = (one for pattern in (place, place.parent / f"{glob.escape(place.name)}.*") for one in matches(pattern))
    if not place.exists() and next(there, None) is None:
        raise DataError(f"{address}: no such file in the data set")
    return place
