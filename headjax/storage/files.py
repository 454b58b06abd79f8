"""Files: read and written with errors of one line, whole or not at all; measurements kept as they are made."""

from __future__ import annotations

import contextlib
import functools
import glob
import gzip
import hashlib
import io
import json
import logging
import os
import re
import shutil
import socket
import sys
import threading
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError

from headjax.core.errors import DataError, HeadjaxError
from headjax.storage.paths import first_line, is_bucket, path_of


def write_file(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write a file beside its place, move it there when complete and on disk, and return its path.

    Links are followed, and permissions of a file that is replaced are kept. A device or a pipe is written to as it
    stands. Folders on the way are made.
    """
    place = path_of(path)
    try:
        if is_bucket(place):
            place.write_bytes(data)
        elif is_stream(place):
            with place.open("ab") as stream:
                stream.write(data)
        else:
            target = Path(os.path.realpath(place))
            if target.is_dir():
                raise IsADirectoryError(None, "a folder, where a file is to be written")
            if not place.is_symlink():  # a link into a folder that is not there leads nowhere
                target.parent.mkdir(parents=True, exist_ok=True)
            partial = beside(target, "new")
            try:
                with partial.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                if target.is_file():
                    shutil.copymode(target, partial)
                partial.replace(target)
            finally:
                partial.unlink(missing_ok=True)
            sync_folder(target.parent)
            remove_leftovers(target)
    except OSError as error:
        raise HeadjaxError(f"{path}: cannot be written ({error.strerror})") from None
    return place


def is_stream(path: Path) -> bool:
    """Return whether a path leads to a device, a pipe or an open file of a process, which no file may replace."""
    if not path.exists():
        return False
    system = os.path.abspath(path).startswith(("/dev/fd/", "/dev/std", "/proc/"))
    return system or not (path.is_file() or path.is_dir())


_BESIDE = re.compile(r"(?<![^/])\.([^/]+?)\.(\d+)-\d+@([^/]+)\.(?:new|old)(?![^/])")


def beside(target: Path, kind: Literal["new", "old"]) -> Path:
    """Return the path beside a file or folder where this thread writes it, `new`, or keeps the one before, `old`."""
    writer = f"{os.getpid()}-{threading.get_native_id()}@{socket.gethostname()}"
    return target.with_name(f".{target.name}.{writer}.{kind}")


def shown(path: str) -> str:
    """Return a path as users know it: with the name that a file or folder gets when it is complete, see `beside`."""
    return _BESIDE.sub(r"\1", path)


def remove_leftovers(target: Path) -> None:
    """Delete what killed processes of this machine left `beside` a file or folder that is whole."""
    for entry in target.parent.glob(f".{glob.escape(target.name)}.*.*"):
        match = _BESIDE.fullmatch(entry.name)
        if match is None or match[3] != socket.gethostname() or process_lives(int(match[2])):
            continue
        if entry.suffix == ".old" and not target.exists():
            continue
        shutil.rmtree(entry, ignore_errors=True)
        with contextlib.suppress(OSError):
            entry.unlink(missing_ok=True)


def process_lives(number: int) -> bool:
    """Return whether a process of this machine has a number; True where the system does not know."""
    if os.name != "posix":
        return True
    try:
        os.kill(number, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def sync_folder(folder: Path) -> None:
    """Bring a folder's names to disk, where the system can."""
    with contextlib.suppress(OSError):  # neither Windows nor every mount opens or syncs folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


NO_MEMORY = "out of memory; a smaller batch size, length or model needs less, and headjax plan says how much"

_OF_WRITERS = (SafetensorError, ValueError, RuntimeError)
"""Errors of safetensors and TensorStore for a failed write; clients of buckets raise others."""


def format_error(error: BaseException, path: Path | None = None) -> str | None:
    """Return one line about a failure of the machine, also one among an error's causes; None for any other error."""
    for each in causes(error):
        out = type(each).__name__ in ("JaxRuntimeError", "XlaRuntimeError") and "RESOURCE_EXHAUSTED" in str(each)
        if out or isinstance(each, MemoryError):
            return NO_MEMORY
        if isinstance(each, RecursionError):
            return "the input is nested too deep"
        if isinstance(each, OSError) and each.strerror:
            reason = each.strerror[:1].lower() + each.strerror[1:]
            name = os.fsdecode(each.filename or "")
            if path is not None and not os.path.dirname(name) and name != path.name:
                name = str(path)  # `shutil.rmtree` names an entry of a folder alone
            return f"{shown(name)}: {reason}" if name else reason
        if [frame.name for frame in traceback.extract_tb(each.__traceback__)][-1:] == ["backends"]:
            return f"JAX_PLATFORMS: JAX has no backend {os.environ.get('JAX_PLATFORMS', '')!r} on this machine"
    return None


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the body's failures to write into errors of one line that begins with the path."""
    try:
        yield
    except HeadjaxError:
        raise
    except Exception as error:
        line = format_error(error, path)
        if line is None and (str(path).startswith("gs://") or isinstance(error, _OF_WRITERS)):
            lines = str(error).strip().splitlines() or [type(error).__name__]
            reason = lines[0].rpartition(": ")[2][:200]  # before it stand the library's own steps and long paths
            line = f"{path}: cannot be written ({reason})"
        if line is None or isinstance(error, MemoryError):
            raise
        raise HeadjaxError(line if ": " in line else f"{path}: {line}") from error


def silence_repeats() -> None:
    """Keep libraries from logging a failed write, with tracebacks, beside the error that they raise.

    Of several writes that fail together, asyncio logs all but the first, Orbax logs the whole attempt, TensorStore's
    threads report that nobody waits for the others, and Python warns of those that had not begun. Some do so when
    their objects are collected, after the command has ended: so this holds for the rest of the process.
    """
    for name in ("asyncio", "absl", "gcsfs"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if not isinstance(sys.unraisablehook, functools.partial):
        sys.unraisablehook = functools.partial(_unraisable, sys.unraisablehook)
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)


def _unraisable(tell: Callable[[Any], object], error: Any) -> None:
    """Report an error that nobody can catch, except those of futures whose event loop is closed."""
    if str(error.exc_value) != "Event loop is closed":
        tell(error)


def causes(error: BaseException) -> list[BaseException]:
    """Return an error, those of a group, and those that it was raised from."""
    found = [error]
    for each in found:  # which grows meanwhile
        group = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        above = (*group, each.__cause__, each.__context__)
        found += [other for other in above if other is not None and other not in found]
    return found


def read_text(file: Path) -> str:
    r"""A file's text as UTF-8, without a byte order mark and with `\r\n` made `\n`; one named `*.gz` is unpacked."""
    return "".join(read_lines(file))


def read_lines(file: Path) -> Iterator[str]:
    r"""Yield a file's lines of its text, see `read_text`, each with its `\n` (the last one may have none)."""
    empty = True
    with reading(file), opened(file) as stream:
        for number, data in enumerate(stream, start=1):
            try:
                line = data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise DataError(f"{file}: line {number}: not UTF-8 ({error.reason}); save the file as UTF-8") from None
            if "\0" in line:
                raise DataError(f"{file}: line {number}: binary, not text")
            line = line.removeprefix("\ufeff") if number == 1 else line
            line = f"{line[:-2]}\n" if line.endswith("\r\n") else line
            empty = empty and not line.strip()
            yield line
    if empty:
        raise DataError(f"{file}: empty, there is no text in it")


def read_document(file: Path) -> str:
    """Return the text of a file that describes a model, a tokenizer or prepared shards."""
    if not file.is_file() and file.exists():  # in this order, since others may delete it meanwhile
        raise DataError(f"{file}: not a file but a folder, a pipe or a device")
    try:
        return file.read_bytes().decode("utf-8").replace("\r\n", "\n")
    except FileNotFoundError:
        raise DataError(f"{file}: missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read: {' '.join(str(error).split())}") from None


def check_characters(text: str, place: str) -> str:
    r"""Return a text whose characters are whole; JSON can spell halves, `\ud800`, which no file or tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"half of a pair (U+{ord(text[error.start]):04X})"
        raise DataError(f"{place}: character {error.start} is {half}") from None
    return text


def json_text(data: Any, indent: int | None = None, *, ensure_ascii: bool = True) -> str:
    """Return data as JSON text, with null for numbers that are not finite: JSON has none."""
    try:
        return json.dumps(data, indent=indent, allow_nan=False, ensure_ascii=ensure_ascii)
    except ValueError:
        plain = json.loads(json.dumps(data), parse_constant=lambda _: None)
        return json.dumps(plain, indent=indent, ensure_ascii=ensure_ascii)


def parse_json(text: str | bytes, place: str) -> Any:
    """Return the value of a JSON text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = f" line {error.lineno}:" if error.lineno > 1 else ""
        raise DataError(f"{place}:{line} not JSON ({error.msg})") from None
    except ValueError as error:  # too many digits, or no UTF-8
        raise DataError(f"{place}: not JSON ({first_line(error).split(';')[0]})") from None
    except RecursionError:
        raise DataError(f"{place}: nested too deep") from None


def read_bytes(file: Path) -> bytes:
    """A file's bytes; one named `*.gz` is unpacked."""
    with reading(file), opened(file) as stream:
        return stream.read()


def opened(file: Path) -> io.BufferedIOBase:
    """Return a file opened to read its bytes; one named `*.gz` is unpacked."""
    if file.suffix != ".gz":
        return file.open("rb")
    return gzip.open(file if isinstance(file, Path) else io.BytesIO(file.read_bytes()))


@contextlib.contextmanager
def reading(file: Path) -> Iterator[None]:
    """Turns the errors of reading a file into a `DataError` that names it."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{file}: no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{file}: not a whole gzip file ({error})") from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from None


def key_of_study(described: Any, arrays: Any) -> str:
    """Return the key of a measurement, another one for other settings or any other number."""
    import jax  # here, so that refusals of commands come before it

    digest = hashlib.sha256(repr(described).encode())
    for path, array in jax.tree.leaves_with_path(arrays):
        digest.update(jax.tree_util.keystr(path).encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)  # without a copy of the weights
    return digest.hexdigest()


KEY = "key"  # name of a study's key among the arrays of a file


class Kept:
    """Measurements by name, as JSON data, and arrays beside them."""

    def __init__(self, path: str | Path | None = None, key: str = "") -> None:
        """Read the measurements of an earlier study of this key; without a path all are kept in memory."""
        self._path, self._key = None if path is None else path_of(path), key
        self.found: dict[str, Any] = {}
        self._arrays: dict[str, Mapping[str, np.ndarray]] = {}
        if self._path is not None and self._path.is_file():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                data = json.loads(self._path.read_text())
                self.found = dict(data["found"]) if data["key"] == key else {}

    def __call__(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return the measurement of a name; measure it, and write the file, if nothing was."""
        if name not in self.found:
            self.found[name] = json.loads(json.dumps(measure()))
            if self._path is not None:
                write_file(self._path, json.dumps({"key": self._key, "found": self.found}).encode())
        return self.found[name]

    def keep(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep arrays by their names, in a file beside that of the measurements; without one, in memory."""
        file = self._file_of(name)
        if file is None:
            self._arrays[name] = arrays
            return
        stream, contents = io.BytesIO(), dict[str, Any](arrays, **{KEY: np.array(self._key)})
        np.savez(stream, **contents)
        write_file(file, stream.getvalue())

    def arrays(self, name: str) -> Mapping[str, np.ndarray] | None:
        """Return the arrays kept under a name; None if this study has kept none."""
        file = self._file_of(name)
        if file is None or not file.is_file():
            return self._arrays.get(name)
        try:
            with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as stored:
                arrays = dict(stored)
        except (ValueError, EOFError, zipfile.BadZipFile, zlib.error):
            return None
        return arrays if str(arrays.pop(KEY, "")) == self._key else None

    def _file_of(self, name: str) -> Path | None:
        return None if self._path is None else self._path.parent / f"{name.replace('/', '-')}.npz"
