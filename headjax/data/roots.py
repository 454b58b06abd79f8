"""Where data sets are looked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from headjax.core.errors import DataError

ROOT = "HEADJAX_DATA"
"""Environment variable with the folder that data sets are looked for in."""


def candidate_folders(path: str, names: Sequence[str]) -> Iterator[Path]:
    """The folder that is given, or else those of these names under the one that `ROOT` names."""
    if path:
        yield Path(path).expanduser()
    elif ROOT in os.environ:
        yield from (Path(os.environ[ROOT]).expanduser() / name for name in names)


def missing(task: str, path: str, names: Sequence[str], wanted: str = "its files") -> DataError:
    """The error of a data set that is in none of its folders."""
    if path:
        return DataError(f"{path}: not a folder of {task}: expected {wanted}")
    if ROOT in os.environ:
        return DataError(f"{os.environ[ROOT]}: {ROOT} has no folder {' or '.join(names)} with {wanted}")
    return DataError(f"{task}: set {ROOT} to the folder that holds {names[0]}, or give that one's path")


def data_folder(task: str, path: str, names: Sequence[str], holds: Callable[[Path], bool]) -> Path:
    """The first of a data set's possible folders that holds it.

    Raises:
        DataError: none does.
    """
    for folder in candidate_folders(path, names):
        if holds(folder):
            return folder
    raise missing(task, path, names)
