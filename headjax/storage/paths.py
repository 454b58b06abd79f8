"""Paths of users: folders of this machine as `pathlib.Path`, buckets (`gs://BUCKET/NAME`) as paths with its methods.

Every function that takes a path takes it through `path_of`. Libraries of buckets are imported with the first bucket
that is named.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard, cast

from headjax.core.errors import HeadjaxError, in_line

if TYPE_CHECKING:
    from headjax.storage.buckets import BucketPath

SCHEME = "gs://"
"""Beginning of the address of a bucket of Google Cloud Storage."""


def path_of(path: str | os.PathLike[str]) -> Path:
    """Return a path as an object with the methods of `pathlib.Path`.

    Args:
        path: a path of this machine, or `gs://BUCKET/NAME`.

    Returns:
        A `pathlib.Path`; for a bucket a `headjax.storage.buckets.BucketPath`, which has those of its methods that
        headjax calls.

    Raises:
        HeadjaxError: an address of another kind, a bucket without a name, a name that no file can have, or the extra
            `gcs` is not installed.
    """
    text = os.fspath(path)
    if "\0" in text or not _is_spelled(text):
        raise HeadjaxError(f"{in_line(text)}: no file can have this name, of NUL or half a character")
    scheme, separator, rest = text.partition("://")
    if not separator:
        _check_name(text, Path(text))
        return Path(text)
    if f"{scheme}://" != SCHEME:
        raise HeadjaxError(f"{text}: not a path that headjax reads or writes; paths are folders or {SCHEME}BUCKET/NAME")
    if not rest.split("/")[0]:
        raise HeadjaxError(f"{text}: the bucket has no name; expected {SCHEME}BUCKET/NAME")
    try:
        from headjax.storage.buckets import BucketPath
    except ImportError as error:
        raise HeadjaxError(f"{text}: buckets need {error.name}; pip install '.[gcs]' from a checkout") from None
    return cast(Path, BucketPath(text))


def _is_spelled(text: str) -> bool:
    """Return whether the characters of a path are whole, as bytes that are no UTF-8 count too."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def is_bucket(path: object) -> TypeGuard[BucketPath]:
    """Return whether a path of `path_of` lies in a bucket."""
    return not isinstance(path, Path) and str(path).startswith(SCHEME)


def check_folder(path: str | os.PathLike[str]) -> None:
    """Check, before any work is done for it, that a path is a folder or can become one.

    Raises:
        HeadjaxError: it, or what lies above it, is something else or cannot be written to.
    """
    place = path_of(path)
    if isinstance(place, Path):
        _check_name(path, place)
        if place.is_symlink() and not place.exists():
            raise HeadjaxError(f"{path}: a link that leads to nothing")
        _check_above(path, place)
    check_writable(path)


def check_file(path: str | os.PathLike[str]) -> None:
    """Check, before any work is done for it, that a file, device or pipe of this path can be written.

    Raises:
        HeadjaxError: the path is a folder, or its parent is no folder or cannot be written to.
    """
    place = path_of(path)
    if isinstance(place, Path):
        _check_name(path, place)
        if place.is_dir():
            raise HeadjaxError(f"{path}: a folder, where a file is to be written")
        if place.is_file() or not place.exists():
            target = Path(os.path.realpath(place))
            _check_name(path, target.with_name(target.name + _BESIDE))
            _check_above(path, target.parent)
    check_writable(path)


_BESIDE = "." * 64
"""Longest addition to a file's name, roughly, while it is written beside its place."""


def _check_name(path: str | os.PathLike[str], place: Path) -> None:
    """Check that the file system takes a name of this length."""
    try:
        os.lstat(place)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise HeadjaxError(f"{in_line(os.fspath(path))}: the name is too long") from None


def _check_above(path: str | os.PathLike[str], place: Path) -> None:
    """Check the nearest folder that exists, from a place of this machine upwards."""
    place = place.absolute()
    there = next(each for each in (place, *place.parents) if os.path.lexists(each))
    if not there.is_dir():
        raise HeadjaxError(f"{path}: {there} exists and is no folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise HeadjaxError(f"{path}: no permission to write to {there}")


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
    """Return the size in bytes of every file below a folder, by its path below it, sorted.

    Files and folders that disappear meanwhile, as in a folder of a running job, are skipped.
    """
    if is_bucket(folder):
        return {path.relative_to(folder).as_posix(): size for path, size in folder.listing()}
    sizes = {}
    for place, _, names in os.walk(folder, onerror=_unless_gone):
        for file in (Path(place, name) for name in names):
            with contextlib.suppress(FileNotFoundError):
                if file.is_file():
                    sizes[file.relative_to(folder).as_posix()] = file.stat().st_size
    return dict(sorted(sizes.items(), key=lambda entry: entry[0].split("/")))


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | PermissionError):
        raise error


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
