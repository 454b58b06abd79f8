"""Failures of the machine in one line: a full disk, no permission, no memory, input that is nested too deep."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from headjax.core.errors import HeadjaxError
from headjax.storage.files import shown

NO_MEMORY = "out of memory; a smaller batch size, length or model needs less, and headjax plan says how much"

_OF_WRITERS = (SafetensorError, ValueError, RuntimeError)
"""What safetensors and TensorStore raise for a failed write; clients of buckets have errors of their own."""


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


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, those of a group, and those that it was raised from."""
    seen: list[BaseException | None] = []
    waiting = [error]
    while waiting:
        each = waiting.pop(0)
        if each is None or each in seen:
            continue
        seen.append(each)
        yield each
        group = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        waiting += [*group, each.__cause__, each.__context__]
