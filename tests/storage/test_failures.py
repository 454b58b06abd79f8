"""What a user reads when something fails: errors name their field, failures of the machine and Ctrl-C are one line."""

import errno
import gc
import importlib
import logging
import os
import shutil
import signal
import sys
import time
import types
from pathlib import Path

import pytest

from headjax.core.errors import ConfigError, DataError, HeadjaxError, KernelError, require, within
from headjax.core.interrupts import patient_interrupts
from headjax.storage.failures import NO_MEMORY, TOO_DEEP, in_one_line, told_once, writing
from headjax.storage.files import hidden


def test_a_requirement_names_its_field_with_its_path():
    require(True, "width", "must be even, got 3")
    with pytest.raises(ConfigError, match=r"^config\.model\.width: ") as caught, within("config"), within("model"):
        require(False, "width", "must be even, got 3")
    assert isinstance(caught.value, HeadjaxError)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(DataError, match=r"^text\.txt: "), within("config"):
        raise DataError("text.txt: empty")


def test_a_message_quotes_no_whole_file():
    for kind in (HeadjaxError, ConfigError, KernelError):
        message = str(kind(f"config.json: pruned_heads: got {'7, ' * 10**6}; layer 3"))
        assert len(message) < 2000
        assert message.startswith("config.json: pruned_heads: got 7, ")
        assert message.endswith("; layer 3")
    assert str(HeadjaxError("width: is 3")) == "width: is 3"


JaxRuntimeError = type("JaxRuntimeError", (RuntimeError,), {})
GONE = 'NOT_FOUND: Error writing "step" in OCDBT database at local file "/out/4/": Error reading local file "/out/4/d"'
WRITING = 'UNAVAILABLE: Error writing local file "out/params/x": Failed to write [OS error 28: ENOSPC No space left]'
FULL = f"out/params/x: {os.strerror(28).lower()}"


def no_space(*file):
    return OSError(errno.ENOSPC, "No space left on device", *file)


def raised_from(below):
    above = ValueError("writing failed")
    above.__cause__ = below
    return above


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (no_space("out/config.json"), "out/config.json: no space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", b"out"), "out: permission denied"),
        (OSError(errno.EIO, "Input/output error"), "input/output error"),
        (no_space(str(hidden(Path("out/m"), "new") / "config.json")), "out/m/config.json: no space left on device"),
        (MemoryError(), NO_MEMORY),
        (RecursionError("maximum recursion depth exceeded"), TOO_DEEP),
        (JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes."), NO_MEMORY),
        (ValueError(WRITING), FULL),
        (ValueError(WRITING.replace("[OS error 28: ENOSPC No space left]", "[os_error_code='28']")), FULL),
        (ValueError(GONE), "/out/4/: no such file or directory"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), os.strerror(28).lower()),
        (ExceptionGroup("tasks", [KeyError("x"), MemoryError()]), NO_MEMORY),
        (raised_from(OSError(errno.EROFS, "Read-only file system", "out")), "out: read-only file system"),
    ],
)
def test_a_failure_of_the_machine_is_one_line(error, line):
    assert in_one_line(error).lower() == line.lower()


@pytest.mark.parametrize(
    "error", [ValueError("shape (3, 4)"), KeyError("x"), JaxRuntimeError("INTERNAL: x"), OSError("no number")]
)
def test_a_defect_keeps_its_traceback(error):
    assert in_one_line(error) is None
    other = ValueError("a chain that bites its tail")
    error.__context__, other.__context__ = other, error
    assert in_one_line(error) is None


def test_a_failed_writing_names_a_file():
    """Also where the system's error does not: that of an open file which is written to."""
    for error, line in (
        (no_space(), "out: no space left on device"),
        (no_space("out/x"), "out/x: no space left on device"),
        (no_space("out"), "out: no space left on device"),
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


def seconds_until_interrupted(body):
    """The time after which an interrupt ends the body."""
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), patient_interrupts():
        body()
    return time.monotonic() - start


@pytest.mark.parametrize("seconds", [5.0, 0.0])
def test_an_import_ends_before_the_interrupt(seconds, tmp_path, monkeypatch):
    """Which comes after it, also at the very end of the command."""
    (tmp_path / "slow_module.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\nwhole = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def body():
        importlib.import_module("slow_module")
        if seconds:
            time.sleep(seconds)

    assert seconds_until_interrupted(body) < 2.0
    assert sys.modules.pop("slow_module").whole
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_collection_of_garbage_drops_no_interrupt():
    def called(phase, info):
        if phase == "start":
            signal.raise_signal(signal.SIGINT)
        else:  # by now it has come again, as after the collection of a large heap
            time.sleep(0.1)

    def body():
        gc.callbacks.append(called)
        try:
            gc.collect(0)  # the youngest objects alone: finalizers of others would drop it
        finally:
            gc.callbacks.remove(called)
        time.sleep(5.0)

    assert seconds_until_interrupted(body) < 2.0
    assert seconds_until_interrupted(lambda: signal.raise_signal(signal.SIGINT)) < 2.0  # elsewhere it comes at once
