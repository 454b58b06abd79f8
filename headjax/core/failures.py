"""Failures of the machine in one line: a full disk, no permission, no memory, input that is nested too deep."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

NO_MEMORY = "out of memory; a smaller batch size, length or model needs less, and headjax plan says how much"
TOO_DEEP = "the input is nested too deep"

_RUNTIME = frozenset({"JaxRuntimeError", "XlaRuntimeError"})
"""Names of the runtime's errors; importing them would import JAX."""

_IN_TEXT = re.compile(r"\bos error (\d+)\b", re.IGNORECASE)
"""Number of the operating system's error in a message of TensorStore or safetensors."""

_PATH = re.compile(r"[\"'`]([^\"'`]*/[^\"'`]*)[\"'`]")


def in_one_line(error: BaseException) -> str | None:
    """Return one line about a failure of the machine; None for any other error, which is a defect of headjax.

    Errors of the operating system and of memory are found in what an error was raised from, too, and in the messages
    of libraries that have errors of their own.
    """
    for each in _chain(error):
        if isinstance(each, MemoryError):
            return NO_MEMORY
        if isinstance(each, RecursionError):
            return TOO_DEEP
        if isinstance(each, OSError) and each.strerror:
            return _said(each.strerror, each.filename)
        text = str(each)
        if type(each).__name__ in _RUNTIME and "RESOURCE_EXHAUSTED" in text:
            return NO_MEMORY
        found = _IN_TEXT.search(text)
        if found is not None and int(found[1]):
            path = _PATH.search(text)
            return _said(os.strerror(int(found[1])), path[1] if path else None)
    return None


def _said(reason: str, path: object) -> str:
    reason = reason[:1].lower() + reason[1:]
    return reason if path is None else f"{os.fsdecode(path) if isinstance(path, bytes) else path}: {reason}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
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
