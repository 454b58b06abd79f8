"""Failures of the machine in one line: a full disk, no permission, no memory, input that is nested too deep."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headjax.core.errors import HeadjaxError
from headjax.storage.files import shown

NO_MEMORY = "out of memory; a smaller batch size, length or model needs less, and headjax plan says how much"
TOO_DEEP = "the input is nested too deep"

_RUNTIME = frozenset({"JaxRuntimeError", "XlaRuntimeError"})
"""Names of the runtime's errors; importing them would import JAX."""

_IN_TEXT = re.compile(r"\bos[ _]error(?:_code)?\W{1,3}(\d+)\b", re.IGNORECASE)
"""Number of the operating system's error in a message of TensorStore or safetensors."""

_GONE = re.compile(r"\bNOT_FOUND: .*\blocal file ")
"""Beginning of TensorStore's message about a file that somebody deletes while it is written; it has no number."""

_PATHS = (re.compile(r"[\"'`](/[^\"'`]*)[\"'`]"), re.compile(r"[\"'`]([^\"'`]*/[^\"'`]*)[\"'`]"))
"""Paths in a message: rather one from the root than something else with a stroke, such as the name of an array."""


def in_one_line(error: BaseException) -> str | None:
    """Return one line about a failure of the machine; None for any other error, which is a defect of headjax.

    Errors of the operating system and of memory are also found in the causes of an error, and in the messages of
    libraries with other errors.
    """
    for each in causes(error):
        if isinstance(each, MemoryError):
            return NO_MEMORY
        if isinstance(each, RecursionError):
            return TOO_DEEP
        line = _of_files(each)
        if line is not None:
            return line
        if _module_of(each) == "jax._src.xla_bridge":
            return f"JAX_PLATFORMS: JAX has no backend {os.environ.get('JAX_PLATFORMS', '')!r} on this machine"
        if type(each).__name__ in _RUNTIME and "RESOURCE_EXHAUSTED" in str(each):
            return NO_MEMORY
    return None


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the body's failures to write into errors of one line.

    Args:
        path: named where a failure names no file, as that of writing to an open one, or no folder.

    Raises:
        HeadjaxError: the disk is full, a permission is missing or the like; the message begins with the file.
    """
    try:
        yield
    except HeadjaxError:
        raise
    except Exception as error:
        line = next((line for each in causes(error) if (line := _of_files(each, path)) is not None), None)
        if line is None:
            raise
        raise HeadjaxError(line) from error


@contextlib.contextmanager
def told_once() -> Iterator[None]:
    """Keep libraries from logging a failure, with tracebacks, beside the error that they raise.

    Of several writes that fail together, asyncio logs all but the first once they are collected, and Orbax logs the
    whole attempt. TensorStore's threads report, maybe later, that nobody waits for the others any more. Writes that had
    not begun when the first one failed are never awaited, and Python warns of that.
    """
    before = {name: logging.getLogger(name).level for name in ("asyncio", "absl")}
    for name in before:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if not getattr(sys.unraisablehook, "_without_closed_loops", False):
        sys.unraisablehook = _without_closed_loops(sys.unraisablehook)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def _without_closed_loops(tell: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return the hook for errors that nobody can catch without those of a future whose event loop is closed."""

    def told(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            tell(unraisable)

    told._without_closed_loops = True  # type: ignore[attr-defined]
    return told


def _of_files(error: BaseException, path: Path | None = None) -> str | None:
    """Return a line about an error of the operating system, also of one in a library's message; None for others."""
    if isinstance(error, OSError) and error.strerror:
        return _said(error.strerror, _located(error.filename, path))
    found = _IN_TEXT.search(str(error))
    number = int(found[1]) if found else errno.ENOENT if _GONE.search(str(error)) else 0
    if not number:
        return None
    named = next((named for pattern in _PATHS if (named := pattern.search(str(error)))), None)
    return _said(os.strerror(number), named[1] if named else path)


def _located(name: object, path: Path | None) -> object:
    """Return the file that an error names, or the path where the name says nothing without its folder.

    `shutil.rmtree` deletes by descriptors of folders, so its errors name an entry alone.
    """
    if isinstance(name, bytes):
        name = os.fsdecode(name)
    if path is None or (isinstance(name, str) and (os.path.dirname(name) or name == path.name)):
        return name
    return path


def _said(reason: str, path: object) -> str:
    reason = reason[:1].lower() + reason[1:]
    return reason if path is None else f"{shown(str(path))}: {reason}"


def _module_of(error: BaseException) -> str:
    """Return the name of the module in which an error was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, those of a group, and those that it was raised from."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        each = waiting.pop(0)
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [
            *(each.exceptions if isinstance(each, BaseExceptionGroup) else ()),
            each.__cause__,
            each.__context__,
        ]
