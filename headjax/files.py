"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from headjax.errors import HeadjaxError


def local_folder(path: str | os.PathLike[str]) -> Path:
    """The path of a folder that files are written to.

    Raises:
        HeadjaxError: it is the address of a bucket, which only a mount makes a folder.
    """
    scheme, separator, rest = str(path).partition("://")
    if separator:
        name = rest.split("/")[0]
        mount = f"gcsfuse --implicit-dirs {name} bucket" if scheme == "gs" else "see the bucket's documentation"
        raise HeadjaxError(f"{path}: buckets are written through a mount; mount it ({mount}) and give the folder")
    return Path(path)


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
