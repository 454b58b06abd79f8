"""Paths of users: folders of this machine as `pathlib.Path`, buckets (`gs://BUCKET/NAME`) as paths with its methods.

Whatever takes a path takes it through `path_of`. Libraries of buckets are imported with the first bucket that is named.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard, cast

from headjax.core.errors import HeadjaxError

if TYPE_CHECKING:
    from headjax.core.buckets import BucketPath

SCHEME = "gs://"
"""Beginning of the address of a bucket of Google Cloud Storage."""


def path_of(path: str | os.PathLike[str]) -> Path:
    """Return a path as an object with the methods of `pathlib.Path`.

    Args:
        path: a path of this machine, or `gs://BUCKET/NAME`.

    Returns:
        A `pathlib.Path`; for a bucket a `headjax.core.buckets.BucketPath`, which has those of its methods that
        headjax calls.

    Raises:
        HeadjaxError: an address of another kind, a bucket without a name, or the extra `gcs` is not installed.
    """
    text = os.fspath(path)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return Path(text)
    if f"{scheme}://" != SCHEME:
        raise HeadjaxError(f"{text}: not a path that headjax reads or writes; paths are folders or {SCHEME}BUCKET/NAME")
    if not rest.split("/")[0]:
        raise HeadjaxError(f"{text}: the bucket has no name; expected {SCHEME}BUCKET/NAME")
    try:
        from headjax.core.buckets import BucketPath
    except ImportError as error:
        raise HeadjaxError(f"{text}: buckets need {error.name}; pip install 'headjax[gcs]'") from None
    return cast(Path, BucketPath(text))


def is_bucket(path: object) -> TypeGuard[BucketPath]:
    """Return whether a path of `path_of` lies in a bucket."""
    return not isinstance(path, Path) and str(path).startswith(SCHEME)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Check that a bucket exists and takes files, by writing and deleting one beside the path; folders pass.

    A folder of this machine says so at once when it is written to. A bucket would after hours of work.

    Raises:
        HeadjaxError: the bucket does not exist or refuses.
    """
    place = path_of(path)
    if not is_bucket(place):
        return
    probe = place.with_name(f".{place.name}.{secrets.token_hex(4)}.probe")
    try:
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise HeadjaxError(f"{path}: cannot be written ({error.strerror})") from None


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the size in bytes of every file below a folder, by its path below it, sorted."""
    if is_bucket(folder):
        return {path.relative_to(folder).as_posix(): size for path, size in folder.listing()}
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def copy_file(file: Path, target: Path) -> None:
    """Copy a file to a path, which may lie in a bucket; both may where they are in the same service.

    Raises:
        OSError: it cannot be read or written.
    """
    if is_bucket(file) and is_bucket(target):
        file.copy_to(target)
    elif is_bucket(file):
        file.download(target)
    elif is_bucket(target):
        target.upload(file)
    else:
        shutil.copyfile(file, target)


def remove_tree(path: Path) -> None:
    """Delete a folder and all below it, as far as that succeeds."""
    with contextlib.suppress(OSError):
        if is_bucket(path):
            path.rmtree()
        else:
            shutil.rmtree(path, ignore_errors=True)
