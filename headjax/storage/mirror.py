"""Files that grow, of folders of this machine and of buckets, to which nothing can be appended."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from headjax.core.errors import HeadjaxError
from headjax.storage.paths import copy_file, is_bucket

EVERY = 30.0
"""Seconds after which new lines are copied to a bucket."""


class Mirror:
    """A folder of this machine whose files end up below a path.

    For a path of this machine it is that path. For a bucket it is a temporary folder; files that have changed are
    copied to the bucket whole when `publish` or `close` is called, which should be every `EVERY` seconds. A killed
    process loses later lines.

    Attributes:
        folder: the folder to write to.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = tempfile.TemporaryDirectory(prefix="headjax-") if is_bucket(path) else None
        self.folder = path if self._temporary is None else Path(self._temporary.name)
        self._copied: dict[str, tuple[int, int]] = {}
        self._last = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether files wait for so long that they should be copied."""
        return self._temporary is not None and time.monotonic() - self._last >= EVERY

    def publish(self) -> None:
        """Copy the files that have changed.

        Raises:
            HeadjaxError: a file cannot be written.
        """
        if self._temporary is None:
            return
        for file in sorted(file for file in self.folder.rglob("*") if file.is_file()):
            found, name = os.stat(file), file.relative_to(self.folder).as_posix()
            if self._copied.get(name) != (found.st_size, found.st_mtime_ns):
                try:
                    copy_file(file, self._path / name)
                except OSError as error:
                    raise HeadjaxError(f"{self._path / name}: cannot be written ({error.strerror})") from None
                self._copied[name] = (found.st_size, found.st_mtime_ns)
        self._last = time.monotonic()

    def close(self) -> None:
        """Copy the files that have changed, and delete a temporary folder."""
        if self._temporary is not None:
            try:
                self.publish()
            finally:
                self._temporary.cleanup()
                self._temporary = None
