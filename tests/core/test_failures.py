"""Failures of the machine are one line; other errors are none of its business."""

import errno
import os

import pytest

from headjax.core.failures import NO_MEMORY, TOO_DEEP, in_one_line

JaxRuntimeError = type("JaxRuntimeError", (RuntimeError,), {})

WRITING = 'UNAVAILABLE: Error writing local file "out/params/x": Failed to write [OS error 28: ENOSPC No space left]'


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "out/config.json"),
            "out/config.json: no space left on device",
        ),
        (PermissionError(errno.EACCES, "Permission denied", b"out"), "out: permission denied"),
        (OSError(errno.EIO, "Input/output error"), "input/output error"),
        (MemoryError(), NO_MEMORY),
        (RecursionError("maximum recursion depth exceeded"), TOO_DEEP),
        (JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes."), NO_MEMORY),
        (ValueError(WRITING), f"out/params/x: {os.strerror(28).lower()}"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), os.strerror(28).lower()),
        (ExceptionGroup("tasks", [KeyError("x"), MemoryError()]), NO_MEMORY),
    ],
)
def test_one_line(error, line):
    assert in_one_line(error).lower() == line.lower()


def test_the_reason_may_lie_below():
    above = ValueError("writing failed")
    above.__cause__ = OSError(errno.EROFS, "Read-only file system", "out")
    assert in_one_line(above) == "out: read-only file system"


@pytest.mark.parametrize(
    "error", [ValueError("shape (3, 4)"), KeyError("x"), JaxRuntimeError("INTERNAL: x"), OSError("no number")]
)
def test_a_defect_keeps_its_traceback(error):
    assert in_one_line(error) is None


def test_a_chain_that_bites_its_tail_ends():
    one, other = ValueError("one"), ValueError("other")
    one.__context__, other.__context__ = other, one
    assert in_one_line(one) is None
