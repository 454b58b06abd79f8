"""Folders that are read: opened once, each document read once and compared with the folder's record as it is read."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from headjax.core.errors import CheckpointError, DamagedError
from headjax.storage import integrity
from headjax.storage.directories import UNFINISHED, settle
from headjax.storage.files import document_bytes, document_text, first_line
from headjax.storage.paths import is_bucket, path_of

ATTEMPTS = 5
"""Readings of a folder that is replaced meanwhile."""

T = TypeVar("T")


class Folder:
    """A folder as it was when it was opened.

    Leftovers of killed writers beside it are settled before. A folder of a bucket that is not whole is refused.

    Attributes:
        path: the folder.
        identity: the numbers by which it differs from another one under the same name; None without a folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a folder.

        Raises:
            HeadjaxError: no such path can be.
            CheckpointError: a folder of a bucket is being written, or was left by a writer that was killed.
        """
        self.path = path_of(path)
        settle(self.path)
        if is_bucket(self.path) and (self.path / UNFINISHED).exists():
            raise CheckpointError(f"{self.path}: being written, or left unfinished by a process that was killed")
        self.identity = _identity(self.path)
        self._texts: dict[str, str] = {}

    @functools.cached_property
    def record(self) -> Mapping[str, integrity.Entry]:
        """Size and checksums of its files by name; empty for a folder without a record."""
        return integrity.read_record(self.path) or {}

    def text(self, name: str) -> str:
        """Return the text of a document, which is read the first time that it is asked for.

        Args:
            name: path of the file below the folder.

        Raises:
            DamagedError: it is not as it was written.
            CheckpointError: it is missing or cannot be read.
            DataError: it is no file, or larger than a document may be.
        """
        if name not in self._texts:
            file, entry = self.path / name, self.record.get(name)
            try:
                data = document_bytes(file)
                integrity.refuse(None if entry is None else integrity.damage_of(file, entry, data))
                self._texts[name] = document_text(data)
            except FileNotFoundError:
                raise (CheckpointError if entry is None else DamagedError)(f"{file}: missing") from None
            except (OSError, UnicodeDecodeError) as error:
                raise CheckpointError(f"{file}: cannot be read ({first_line(error)})") from None
        return self._texts[name]

    def text_at(self, file: Path) -> str:
        """Return the text of a document by its whole path, see `text`."""
        return self.text(file.relative_to(self.path).as_posix())

    def json(self, name: str) -> Any:
        """Return the value of a JSON document, see `text`.

        Raises:
            CheckpointError: it is not JSON.
        """
        text = self.text(name)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{self.path / name}: cannot be read ({first_line(error)})") from None

    @contextlib.contextmanager
    def compared(self) -> Iterator[None]:
        """Compare the files whose text has not been read while the body reads them, see `integrity.checking`."""
        rest = {name: entry for name, entry in self.record.items() if name not in self._texts}
        with integrity.checking(self.path, rest):
            yield

    @property
    def is_unchanged(self) -> bool:
        """Whether no other folder has taken its place."""
        return _identity(self.path) == self.identity

    def require_unchanged(self) -> None:
        """Raise `CheckpointError` if another folder has taken its place."""
        if not self.is_unchanged:
            raise CheckpointError(f"{self.path}: replaced or removed while it was read; start again")


def read_folder(folder: Folder, read: Callable[[Folder], T]) -> T:
    """Return the result of reading an opened folder; one that is replaced meanwhile is opened and read again."""
    for _ in range(ATTEMPTS - 1):
        try:
            found = read(folder)
        except Exception:
            # No folder before and none now may be the moment between the two renames of a replacement.
            if folder.identity is not None and folder.is_unchanged:
                raise
        else:
            if folder.is_unchanged:
                return found
        folder = Folder(folder.path)
    return read(folder)


def _identity(path: Path) -> tuple[int, ...] | None:
    """Return the numbers by which a folder differs from another one under the same name; None without a folder.

    A number of a deleted folder is soon given to another one; the time of a folder's renaming is its own. In a bucket
    it is the generation of the record, and None while the folder is written.
    """
    if is_bucket(path):
        generation = (path / integrity.RECORD).generation
        return None if generation is None or (path / UNFINISHED).exists() else (generation,)
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns
