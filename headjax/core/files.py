"""Files and folders: read with one-line errors, and written whole or not at all."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from headjax.core.errors import CheckpointError, DataError, HeadjaxError


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
    """Write a file beside its place, move it there when complete, and return its path.

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


def read_text(file: Path) -> str:
    r"""A file's text as UTF-8, without a byte order mark and with `\r\n` made `\n`; one named `*.gz` is unpacked.

    Raises:
        DataError: a file that is missing, empty, binary, not UTF-8 or cannot be read; the message starts with it.
    """
    data = read_bytes(file)
    if b"\0" in data:
        raise DataError(f"{file}: binary, not text: zero byte at offset {data.index(0)}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{file}: line {line}, byte offset {error.start}: not UTF-8 ({error.reason})") from None
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if not text.strip():
        raise DataError(f"{file}: empty, there is no text in it")
    return text


def read_bytes(file: Path) -> bytes:
    """A file's bytes; one named `*.gz` is unpacked.

    Raises:
        DataError: a file that is missing, no whole gzip file or cannot be read; the message starts with it.
    """
    with reading(file):
        data = file.read_bytes()
        return gzip.decompress(data) if file.suffix == ".gz" else data


@contextlib.contextmanager
def reading(file: Path) -> Iterator[None]:
    """Turns what reading a file may raise into a `DataError` that names it."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{file}: no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{file}: not a whole gzip file ({error})") from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from None


def write_directory(path: Path, write: Callable[[Path], None], marker: str) -> None:
    """Write a directory beside its place and move it there when complete.

    Args:
        path: the directory; an older one that holds `marker` is replaced.
        write: function that fills the folder it is given.
        marker: name of a file that every such directory holds.

    Raises:
        CheckpointError: the path holds something else.
    """
    if path.exists() and not (path / marker).is_file() and (not path.is_dir() or any(path.iterdir())):
        raise CheckpointError(f"{path}: exists and holds something else (no {marker})")
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        staging.chmod(0o755)
        write(staging)
        if path.exists():
            shutil.rmtree(path)
        staging.rename(path)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error, cut to 200 characters."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]
