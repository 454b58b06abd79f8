"""Buckets of Google Cloud Storage as paths, with the methods of `pathlib.Path` that headjax calls.

A bucket has objects and no folders: a folder is the common beginning of objects' names, there as long as an object is.
An object appears whole, and is replaced whole; nothing can be appended to it. Failures are `OSError`s with the path and
a reason, as those of the operating system.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import io
import json
import logging
import os
import socket
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import fsspec
import gcsfs
from etils.epath import gpath
from gcsfs.retry import HttpError

# Orbax's paths reach buckets by TensorFlow where that is installed, which takes long to import, and whose listings and
# settings are others than those of this library. What etils has found before the first bucket is named is forgotten.
os.environ.setdefault("EPATH_USE_TF", "false")
gpath._is_tf_installed.cache_clear()
# Other processes and TensorStore write to a bucket, too: a remembered listing would be wrong.
fsspec.config.conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)

# The client logs every failure with its traceback; the error that follows says in one line which path it was.
logging.getLogger("gcsfs").setLevel(logging.CRITICAL)

SERVICE = "https://storage.googleapis.com"
NO_BUCKET = "no such bucket, or not one of yours"
REFUSED = "the bucket refuses; see who may read and write it, and `gcloud auth application-default login`"

REACHED_WITHIN = 5.0
"""Seconds in which the service must answer when a process first turns to it."""

AT_ONCE = 2**20
"""Number of bytes to read ahead."""


class Stat(NamedTuple):
    """Size in bytes of an object, and the time of its writing in seconds since 1970."""

    st_size: int
    st_mtime: float


class BucketPath(gpath.PosixGPath):
    """A path `gs://BUCKET/NAME`."""

    @property
    def _fs(self) -> Any:
        return gcsfs.GCSFileSystem()

    @property
    def _key(self) -> str:
        return str(self).removeprefix("gs://").rstrip("/")

    def _info(self) -> dict[str, Any] | None:
        """Return the description of an object or folder; None without it."""
        with contextlib.suppress(FileNotFoundError), _named(self):
            found: dict[str, Any] = self._fs.info(self._key)
            return found
        return None

    def exists(self) -> bool:
        """Return whether there is an object of this name, or one below it."""
        return self._info() is not None

    def is_file(self) -> bool:
        """Return whether there is an object of this name."""
        return (self._info() or {}).get("type") == "file"

    def is_dir(self) -> bool:
        """Return whether there is an object below this name."""
        return (self._info() or {}).get("type") == "directory"

    def is_symlink(self) -> bool:
        """Return False: a bucket has no links."""
        return False

    def absolute(self, strict: bool = False) -> BucketPath:
        """Return the path itself: no link leads elsewhere, and no folder or user is meant by it."""
        return self

    resolve = expanduser = absolute

    def stat(self) -> Stat:
        """Return size and time of an object.

        Raises:
            FileNotFoundError: there is no such object.
        """
        found = self._info()
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        return Stat(int(found.get("size") or 0), found["mtime"].timestamp() if "mtime" in found else 0.0)

    @property
    def generation(self) -> int | None:
        """Number of the object's present content, another one after each writing; None without the object."""
        found = self._info()
        return None if found is None or "generation" not in found else int(found["generation"])

    def iterdir(self) -> Iterator[BucketPath]:
        """Yield objects and folders right below this one."""
        with _named(self):
            found = self._fs.ls(self._key, detail=False)
        yield from (BucketPath(f"gs://{name}") for name in sorted(found) if name.rstrip("/") != self._key)

    def rglob(self, pattern: str) -> Iterator[BucketPath]:
        """Yield the objects below this folder whose names match a pattern, sorted."""
        for path, _ in self.listing():
            if fnmatch.fnmatchcase(path.name, pattern):
                yield path

    def glob(self, pattern: str) -> Iterator[BucketPath]:
        """Yield the matches of a pattern below this folder, sorted."""
        with _named(self):
            found = self._fs.glob(f"{self._key}/{pattern}")
        yield from (BucketPath(f"gs://{name}") for name in sorted(found))

    def listing(self) -> list[tuple[BucketPath, int]]:
        """Return the objects below this folder with their sizes in bytes, sorted."""
        with contextlib.suppress(FileNotFoundError), _named(self):
            found = self._fs.find(self._key, detail=True)
            return [(BucketPath(f"gs://{name}"), int(info["size"])) for name, info in sorted(found.items())]
        return []

    def open(
        self, mode: str = "r", buffering: int = -1, encoding: str | None = None, errors: str | None = None, **_: Any
    ) -> IO[Any]:
        """Open an object to read it, or to overwrite it; it appears when closed."""
        with _named(self):
            file: Any = self._fs.open(self._key, mode.replace("t", "").replace("b", "") + "b")
        if "r" in mode:
            file = io.BufferedReader(file, AT_ONCE)  # the client's file reads no line up to a length
        return file if "b" in mode else io.TextIOWrapper(file, encoding or "utf-8", errors)

    def read_bytes(self) -> bytes:
        """Return an object's bytes."""
        with _named(self):
            found: bytes = self._fs.cat_file(self._key)
            return found

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        """Return an object's text."""
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def write_bytes(self, data: bytes) -> int:
        """Write an object whole."""
        with _named(self, NO_BUCKET):
            self._fs.pipe_file(self._key, data)
        return len(data)

    def write_text(self, data: str, encoding: str | None = None, **_: Any) -> int:
        """Write an object whole."""
        return self.write_bytes(data.encode(encoding or "utf-8"))

    def write_if(self, data: bytes, generation: int) -> int | None:
        """Write an object whole, unless its generation is another one than expected; 0 expects no object.

        Returns:
            the new generation; None if nothing was written.
        """
        bucket, _, name = self._key.partition("/")
        head = f"--==0==\nContent-Type: application/json; charset=UTF-8\n\n{json.dumps({'name': name})}\n"
        body = f"{head}--==0==\nContent-Type: application/octet-stream\n\n".encode() + data + b"\n--==0==--"
        try:
            with _named(self, NO_BUCKET):
                fs = self._fs
                written = fs.call(
                    "POST",
                    f"{fs._location}/upload/storage/v1/b/{bucket}/o",
                    uploadType="multipart",
                    ifGenerationMatch=str(generation),
                    headers={"Content-Type": 'multipart/related; boundary="==0=="'},
                    data=body,
                    json_out=True,
                )
        except FileExistsError:
            return None
        return int(written["generation"])

    def upload(self, file: Path) -> None:
        """Write an object from a file of this machine."""
        with _named(self, NO_BUCKET):
            self._fs.put_file(str(file), self._key)

    def download(self, file: Path) -> None:
        """Write an object's bytes to a file of this machine."""
        with _named(self):
            self._fs.get_file(self._key, str(file))

    def copy_to(self, target: BucketPath) -> None:
        """Copy an object within the service."""
        with _named(self):
            self._fs.cp_file(self._key, target._key)

    def rename(self, target: BucketPath) -> BucketPath:
        """Copy all objects below this folder to another one, and delete them here; both are there meanwhile."""
        for path, _ in self.listing():
            path.copy_to(target / path.relative_to(self).as_posix())
        self.rmtree()
        return target

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete an object."""
        try:
            with _named(self):
                self._fs.rm_file(self._key)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rmtree(self, missing_ok: bool = True) -> None:
        """Delete all objects below this folder."""
        for path, _ in self.listing():
            path.unlink(missing_ok=True)

    def mkdir(self, mode: int | None = None, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: a folder is there as soon as something is in it."""

    def rmdir(self) -> None:
        """Do nothing: a folder is gone as soon as nothing is in it."""


@contextlib.contextmanager
def _named(path: BucketPath, missing: str = os.strerror(errno.ENOENT)) -> Iterator[None]:
    """Turn the errors of the service into `OSError`s with a reason and the path.

    Args:
        path: the path.
        missing: reason where the service finds nothing.
    """
    reason = _unreachable(os.environ.get("STORAGE_EMULATOR_HOST") or SERVICE)
    if reason:
        raise OSError(errno.EHOSTUNREACH, reason, str(path))
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, missing, str(path)) from None
    except FileExistsError:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
    except Exception as error:
        if (isinstance(error, HttpError) and str(error.code) in ("401", "403")) or str(error).startswith("Forbidden"):
            raise PermissionError(errno.EACCES, REFUSED, str(path)) from None
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise OSError(errno.EIO, f"the service answers: {lines[0][:200]}", str(path)) from None


_REACHED: set[str] = set()
"""Addresses of services that have answered to this process."""


def _unreachable(address: str) -> str:
    """Return why a service cannot be reached, empty where it can; it is tried until it first answers.

    Its client would look for credentials, try again and again, and only then say so, after most of a minute.
    """
    place = urllib.parse.urlsplit(address if "://" in address else f"http://{address}")
    if address in _REACHED or place.hostname is None or place.scheme in urllib.request.getproxies():
        return ""
    host, port = place.hostname, place.port or (443 if place.scheme == "https" else 80)
    said: list[str] = []

    def turn_to() -> None:
        try:
            socket.create_connection((host, port), REACHED_WITHIN).close()
            said.append("")
        except OSError as error:
            said.append(f"{host} cannot be reached ({error.strerror or error})")

    attempt = threading.Thread(target=turn_to, daemon=True)  # a name may take longer to be looked up
    attempt.start()
    attempt.join(REACHED_WITHIN)
    reason = said[0] if said else f"{host} does not answer within {REACHED_WITHIN:.0f} s"
    if not reason:
        _REACHED.add(address)
    return reason
