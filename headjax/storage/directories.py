"""Directories, written whole or not at all: filled beside their place, brought to disk, and moved there by one rename.

A directory that was there is first renamed to `.NAME.PROCESS@HOST.old`, so that for milliseconds none has the name; the
next write deletes it once the new one is whole. A bucket renames nothing: files are copied, the marker, without which
nobody reads them, last. `checksums.json` has size and CRC-32 of every file, compared when the directory is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from headjax.core.errors import CheckpointError, DamagedError, HeadjaxError
from headjax.storage.files import beside, read_document, remove_leftovers, sync_folder, write_file, writing
from headjax.storage.paths import copy_file, files_below, is_bucket, remove_tree

RECORD = "checksums.json"


class Entry(NamedTuple):
    """Size in bytes and CRC-32 of a file."""

    bytes: int
    crc32: str


def write_checksums(folder: Path) -> None:
    """Record every file below a folder that is complete."""
    names = [name for name in files_below(folder) if name != RECORD]
    record = {name: entry_of(folder / name)._asdict() for name in names}
    write_file(folder / RECORD, (json.dumps(record, indent=1) + "\n").encode())


def entry_of(file: Path) -> Entry:
    """Return size and checksum of a file."""
    size = crc = 0
    with file.open("rb") as opened:
        while data := opened.read(2**20):
            size, crc = size + len(data), zlib.crc32(data, crc)
    return Entry(size, f"{crc:08x}")


def read_checksums(folder: Path) -> dict[str, Entry]:
    """Return the record of a folder by the paths of its files; empty for a folder without one."""
    file = folder / RECORD
    if not file.is_file():
        return {}
    try:
        return {name: Entry(**entry) for name, entry in json.loads(file.read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        raise DamagedError(f"{file}: damaged, it is no record of files") from None


def check_checksums(folder: Path) -> None:
    """Compare a folder with its record; without a record nothing is known and nothing is compared."""
    for name, entry in read_checksums(folder).items():
        _compare(folder / name, entry)


def read_recorded(folder: Path, name: str) -> str:
    """Return the text of one file of a folder, compared with the folder's record."""
    entry = read_checksums(folder).get(name)
    if entry is not None:
        _compare(folder / name, entry)
    return read_document(folder / name)


def _compare(file: Path, entry: Entry) -> None:
    try:
        actual = entry_of(file)
    except FileNotFoundError:
        raise DamagedError(f"{file}: missing") from None
    except OSError as error:
        raise DamagedError(f"{file}: cannot be read ({error})") from None
    if actual != entry:
        size = f"{actual.bytes} bytes instead of {entry.bytes}"
        why = size if actual.bytes != entry.bytes else f"its bytes differ from their checksum in {RECORD}"
        raise DamagedError(f"{file}: damaged, {why}")


class Layout(NamedTuple):
    """Content of a kind of directory."""

    marker: str
    names: frozenset[str]


def write_directory(path: Path, write: Callable[[Path], None], layout: Layout) -> None:
    """Write a directory; it appears under its name, in place of an older one, once it is complete."""
    path = path if is_bucket(path) else Path(os.path.realpath(path))
    check_target(path, layout)
    if is_bucket(path):
        with tempfile.TemporaryDirectory(prefix="headjax-") as folder, writing(path):
            write(Path(folder))
            replace_directory(Path(folder), path, layout)
        return
    staging = beside(path, "new")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(path)
            staging.mkdir()
            write(staging)
            _sync(staging)
            replace_directory(staging, path, layout)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def replace_directory(new: Path, path: Path, layout: Layout) -> None:
    """Move a complete directory to its place, on its file system or from anywhere to a bucket; an older one goes."""
    check_target(path, layout)
    if is_bucket(path):
        (path / layout.marker).unlink(missing_ok=True)
        remove_tree(path)
        for name in sorted(files_below(new), key=lambda name: name == layout.marker):  # the marker last
            copy_file(new / name, path / name)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    old = beside(path, "old")
    if path.exists():
        path.rename(old)
    new.rename(path)
    sync_folder(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def check_target(path: Path, layout: Layout) -> None:
    """Check that a directory may be written to a path: it is free, empty, or holds a directory of this kind alone."""
    if not path.exists():
        return
    if not path.is_dir():
        raise CheckpointError(f"{path}: exists and is no folder")
    names = {child.name for child in path.iterdir()}
    if names and layout.marker not in names and not (is_bucket(path) and names <= layout.names):
        raise CheckpointError(f"{path}: exists and holds something else (no {layout.marker})")
    if others := sorted(names - layout.names):
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise CheckpointError(f"{path}: holds {others[0]}{more}, not written by headjax; choose another folder")


def check_model(folder: Path) -> None:
    """Check that a folder is a model directory, headjax's or of Hugging Face."""
    if not (folder / "config.json").is_file():
        hint = f"; do you mean {folder / 'model'}?" if (folder / "model" / "config.json").is_file() else ""
        raise CheckpointError(f"{folder}: not a model directory (it has no config.json){hint}")


def check_own(path: Path) -> None:
    """Check that a directory which is to be replaced has no file that its record lacks; one without a record passes."""
    record = read_checksums(path)
    others = [name for name in files_below(path) if record and name not in record and name != RECORD]
    if others:
        raise CheckpointError(f"{path}: holds {others[0]}, not written by headjax; choose another folder")


def remove_directory(path: Path) -> None:
    """Delete a folder, under another name first: a deletion cut short leaves no half of it under its own."""
    if is_bucket(path):
        remove_tree(path)
        return
    old = beside(path, "old")
    with contextlib.suppress(OSError):
        path.rename(old)
        shutil.rmtree(old, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Bring all files below a folder to disk, and the names of all of them."""
    for root, _, names in os.walk(folder, topdown=False):
        for name in names:
            with open(Path(root) / name, "rb") as file, contextlib.suppress(OSError):  # not every mount syncs
                os.fsync(file.fileno())
        sync_folder(Path(root))


@contextlib.contextmanager
def hold(folder: Path, name: str = ".lock") -> Iterator[None]:
    """Hold the lock of a folder, which is made where it does not exist. A bucket has no locks, and is not held."""
    if is_bucket(folder):
        yield
        return
    lock = FileLock(folder / name, timeout=0)
    with writing(folder / name):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout:
            raise HeadjaxError(f"{folder}: in use by another process; end it or choose another folder") from None
    try:
        yield
    finally:
        lock.release()
