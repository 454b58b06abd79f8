"""One process at a time writes to a folder, by a lock of the operating system that ends with its process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from headjax.core.errors import HeadjaxError
from headjax.storage.failures import writing
from headjax.storage.paths import is_bucket

LOCK = ".lock"


@contextlib.contextmanager
def hold(folder: Path, name: str = LOCK) -> Iterator[None]:
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
