"""Failures of the machine are one line; other errors are none of its business."""

import errno
import logging
import os
import shutil
import sys
import types
from pathlib import Path

import pytest

from headjax.core.errors import HeadjaxError
from headjax.core.failures import NO_MEMORY, TOO_DEEP, in_one_line, told_once, writing
from headjax.core.files import hidden

JaxRuntimeError = type("JaxRuntimeError", (RuntimeError,), {})

GONE = 'NOT_FOUND: Error writing "step" in OCDBT database at local file "/out/4/": Error reading local file "/out/4/d"'

WRITING = 'UNAVAILABLE: Error writing local file "out/params/x": Failed to write [OS error 28: ENOSPC No space left]'
FULL = f"out/params/x: {os.strerror(28).lower()}"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "out/config.json"),
            "out/config.json: no space left on device",
        ),
        (PermissionError(errno.EACCES, "Permission denied", b"out"), "out: permission denied"),
        (OSError(errno.EIO, "Input/output error"), "input/output error"),
        (
            OSError(errno.ENOSPC, "No space left on device", str(hidden(Path("out/model"), "new") / "config.json")),
            "out/model/config.json: no space left on device",
        ),
        (MemoryError(), NO_MEMORY),
        (RecursionError("maximum recursion depth exceeded"), TOO_DEEP),
        (JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes."), NO_MEMORY),
        (ValueError(WRITING), FULL),
        (ValueError(WRITING.replace("[OS error 28: ENOSPC No space left]", "[os_error_code='28']")), FULL),
        (ValueError(GONE), "/out/4/: no such file or directory"),
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


def test_a_failed_writing_names_a_file():
    """Also where the system's error does not: that of an open file which is written to."""
    for error, line in (
        (OSError(errno.ENOSPC, "No space left on device"), "out: no space left on device"),
        (OSError(errno.ENOSPC, "No space left on device", "out/x"), "out/x: no space left on device"),
        (OSError(errno.ENOSPC, "No space left on device", "out"), "out: no space left on device"),
        (RuntimeError("I/O error (os error 28)"), "out: no space left on device"),
    ):
        with pytest.raises(HeadjaxError, match=f"^{line}$"), writing(Path("out")):
            raise error
    for error in (HeadjaxError("x: wrong"), MemoryError(), OSError("no number"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught, writing(Path("out")):
            raise error
        assert caught.value is error


def test_an_entry_without_its_folder_is_named_by_what_was_written(tmp_path, monkeypatch):
    """`shutil.rmtree` deletes entries by a descriptor of their folder, and its errors name nothing else."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "position").touch()

    def read_only(name, **place):
        raise OSError(errno.EROFS, "Read-only file system", name)

    with monkeypatch.context() as replaced:
        replaced.setattr(os, "unlink", read_only)
        with pytest.raises(HeadjaxError) as caught, writing(tmp_path):
            shutil.rmtree(tmp_path / "7")
    assert str(caught.value) == f"{tmp_path}: read-only file system"


@pytest.mark.parametrize(
    "error", [ValueError("shape (3, 4)"), KeyError("x"), JaxRuntimeError("INTERNAL: x"), OSError("no number")]
)
def test_a_defect_keeps_its_traceback(error):
    assert in_one_line(error) is None


def test_a_chain_that_bites_its_tail_ends():
    one, other = ValueError("one"), ValueError("other")
    one.__context__, other.__context__ = other, one
    assert in_one_line(one) is None


def test_libraries_do_not_tell_it_again(monkeypatch, capfd, recwarn):
    """As asyncio does of tasks that failed beside another, and TensorStore's threads of those that nobody awaits."""

    async def never_awaited():
        pass

    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    with told_once(), told_once():
        logging.getLogger("asyncio").error("Task exception was never retrieved")
        never_awaited()
        for text in ("Event loop is closed", "something else"):
            sys.unraisablehook(types.SimpleNamespace(exc_value=RuntimeError(text)))
    assert [str(each.exc_value) for each in told] == ["something else"]
    assert capfd.readouterr().err == ""
    assert not recwarn.list
    assert logging.getLogger("asyncio").level == logging.NOTSET
