"""Directories: written whole, replaced without a moment in which neither the old nor the new one is on disk.

A directory is written beside its place, brought to disk, and renamed. One that was there changes places with it in one
step where the system offers that (Linux, on most of its file systems); elsewhere it is renamed aside before. It is
deleted after. A process that is killed in between leaves hidden entries, from which the next access restores the old
directory or deletes its remains.

A bucket renames nothing. There a directory is written on this machine and uploaded, its marker last, after an older one
has been deleted; the object `unfinished` says meanwhile that it is not whole, and readers refuse it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import glob
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from headjax.core.errors import CheckpointError, DamagedError
from headjax.storage import integrity
from headjax.storage.failures import writing
from headjax.storage.files import hidden, leftovers, sync_folder
from headjax.storage.paths import copy_file, file_sizes, is_bucket, remove_tree

PATIENCE = 1.0
"""Seconds that a reader waits for a writer that is renaming."""

UNFINISHED = "unfinished"
"""Name of an empty object of a bucket's directory while it is written."""

UPLOADS = 8
"""Objects that are written to a bucket at the same time."""


class Layout(NamedTuple):
    """Content of a kind of directory.

    Attributes:
        marker: name of a file that every such directory holds.
        names: names of all files and folders that headjax writes into it.
    """

    marker: str
    names: frozenset[str]


def write_directory(path: Path, write: Callable[[Path], None], layout: Layout) -> None:
    """Write a directory beside its place and move it there when complete and on disk.

    Args:
        path: the directory; an older one of the same kind is replaced.
        write: function that fills the folder it is given.
        layout: kind of directory.

    Raises:
        CheckpointError: the path holds something else, or files that headjax did not write.
        HeadjaxError: it cannot be written.
    """
    if is_bucket(path):
        check_target(path, layout)
        with tempfile.TemporaryDirectory(prefix="headjax-") as folder:
            write(Path(folder))
            _publish(Path(folder), path, layout)
        return
    path = Path(os.path.realpath(path))
    settle(path)
    check_target(path, layout)
    staging = hidden(path, "new")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            staging.mkdir()
            write(staging)
            _sync(staging)
            replace_directory(staging, path, layout)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def replace_directory(new: Path, path: Path, layout: Layout) -> None:
    """Move a complete directory to its place, on the same file system or bucket; an older one of its kind goes.

    Raises:
        CheckpointError: the path holds something else, or files that headjax did not write.
    """
    if is_bucket(path):
        _publish(new, path, layout)
        remove_tree(new)
        return
    path = Path(os.path.realpath(path))
    check_target(path, layout)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and _exchange(new, path):
        sync_folder(path.parent)
        with contextlib.suppress(
            OSError
        ):  # the place of the new one may have a name, under which nothing goes in parts
            shutil.rmtree(new.rename(hidden(path, "new")), ignore_errors=True)
        return
    aside = hidden(path, "old") if path.exists() else None
    try:
        if aside is not None:
            path.rename(aside)
        new.rename(path)
    except BaseException:
        if aside is not None and not path.exists():
            aside.rename(path)
        raise
    sync_folder(path.parent)
    if aside is not None:
        shutil.rmtree(aside, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Let two directories change places in one step; return False where that fails or the system does not offer it."""
    rename = _renameat2()
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
    return rename is not None and rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


@functools.cache
def _renameat2() -> Callable[..., int] | None:
    """Return Linux's renaming with flags, which Python's library lacks; None on other systems."""
    return getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None


def delete_directory(path: Path) -> None:
    """Delete a directory so that one whose process is killed meanwhile is not found in parts: it is renamed before.

    Raises:
        OSError: it cannot be renamed.
    """
    if not is_bucket(path):
        path = path.rename(hidden(path, "new"))
    remove_tree(path)


def _publish(source: Path, path: Path, layout: Layout) -> None:
    """Copy a complete directory to its place in a bucket, in an order by which nobody takes a part for the whole.

    Raises:
        CheckpointError: the path holds something else, or files that headjax did not write.
        OSError: the bucket refuses.
    """
    check_target(path, layout)
    names = list(file_sizes(source))
    (path / UNFINISHED).write_bytes(b"")
    (path / layout.marker).unlink(missing_ok=True)

    def copy(name: str) -> None:
        copy_file(source / name, path / name)

    with ThreadPoolExecutor(UPLOADS) as pool:
        old = [path / name for name in file_sizes(path) if name != UNFINISHED]
        list(pool.map(lambda file: file.unlink(missing_ok=True), old))
        list(pool.map(copy, (name for name in names if name != layout.marker)))
    copy(layout.marker)
    (path / UNFINISHED).unlink()


def check_target(path: Path, layout: Layout) -> None:
    """Check that a directory may be written to a path: it is free, empty, or holds files of this kind alone.

    Raises:
        CheckpointError: it holds something else; the message names it.
    """
    if not is_bucket(path):
        path = Path(os.path.realpath(path))
        with contextlib.suppress(FileNotFoundError):
            if Path.cwd().is_relative_to(path):
                raise CheckpointError(f"{path}: the current folder or one above it, which cannot be replaced")
    if not path.exists():
        return
    if not path.is_dir():
        raise CheckpointError(f"{path}: exists and is no folder")
    if not any(path.iterdir()):
        return
    if is_bucket(path) and (path / UNFINISHED).exists():
        _refuse_others(path, [name for name in file_sizes(path) if not _is_named(name, layout.names)])
        return
    if not (path / layout.marker).is_file():
        raise CheckpointError(f"{path}: exists and holds something else (no {layout.marker})")
    check_own(path, layout.names)


def check_own(path: Path, names: Collection[str] | None = None) -> None:
    """Check that headjax wrote every file of a directory: by its record, without one by the files' names.

    Args:
        path: the directory; one that does not exist passes.
        names: names of files and folders that are headjax's own where there is no record; None is all.

    Raises:
        CheckpointError: it holds a file of somebody else; the message names it.
    """
    if is_bucket(path):
        files = list(file_sizes(path))
    else:
        found = (file for file in path.rglob("*") if file.is_symlink() or not file.is_dir())
        files = [file.relative_to(path).as_posix() for file in found]
    try:
        known = integrity.read_record(path)
    except DamagedError:
        known = None
    if known is not None:
        others = sorted(name for name in files if name not in known and name != integrity.RECORD)
    else:
        others = sorted(name for name in files if names is not None and not _is_named(name, names))
    _refuse_others(path, others)


def _is_named(file: str, names: Collection[str]) -> bool:
    return file.split("/", maxsplit=1)[0] in names or file == UNFINISHED


def _refuse_others(path: Path, others: list[str]) -> None:
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise CheckpointError(f"{path}: holds {others[0]}{more}, not written by headjax; choose another folder")


def settle(path: Path) -> None:
    """Undo or finish a replacement whose process was killed, and delete leftovers of killed processes beside a path.

    Where another process is between its two renames, wait for it for a moment. A bucket has nothing beside a path.
    """
    if is_bucket(path):
        return
    path = Path(os.path.realpath(path))
    end = time.monotonic() + PATIENCE
    while not path.exists() and not leftovers(path) and any(path.parent.glob(f".{glob.escape(path.name)}.*.old")):
        if time.monotonic() > end:
            break
        time.sleep(0.01)
    for entry, kind in leftovers(path):
        with contextlib.suppress(OSError):  # read-only, or settled by another process
            if kind == "old" and not path.exists():
                entry.rename(path)
            else:
                shutil.rmtree(entry)


def _sync(folder: Path) -> None:
    """Bring all files below a folder to disk, and the names of all of them."""
    for root, _, names in os.walk(folder, topdown=False):
        for name in names:
            with open(Path(root) / name, "rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(root))
