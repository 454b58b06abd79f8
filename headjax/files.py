"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from headjax.errors import HeadjaxError


def write_file(path: str | os.PathLike[str], data: bytes) -> Path:
    """Writes a file beside its place, moves it there when complete, and returns its path.

    Folders on the way are made. A file that was there stays as it is until then.

    Raises:
        HeadjaxError: the file cannot be written.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_bytes(data)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise HeadjaxError(f"{path}: cannot be written ({error.strerror})") from None
    return target
