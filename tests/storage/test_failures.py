"""What a user reads when something fails: errors name their field, failures of the machine are one line."""

import errno
import logging
import sys
import types
from pathlib import Path

import pytest
from safetensors import SafetensorError

import headjax
from headjax.core.errors import require, within
from headjax.storage.files import NO_MEMORY, beside, format_error, silence_repeats, writing


def test_a_requirement_names_its_field_with_its_path():
    require(True, "width", "must be even, got 3")
    with (
        pytest.raises(headjax.ConfigError, match=r"^config\.model\.width: ") as caught,
        within("config"),
        within("model"),
    ):
        require(False, "width", "must be even, got 3")
    assert isinstance(caught.value, headjax.HeadjaxError)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(headjax.DataError, match=r"^text\.txt: "), within("config"):
        raise headjax.DataError("text.txt: empty")


JaxRuntimeError = type("JaxRuntimeError", (RuntimeError,), {})
WRITING = "OUT_OF_RANGE: Error writing local file 'out/x': Failed writing: No space left [os_error_code='28']"


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
        (no_space(str(beside(Path("out/m"), "new") / "config.json")), "out/m/config.json: no space left on device"),
        (MemoryError(), NO_MEMORY),
        (RecursionError("maximum recursion depth exceeded"), "the input is nested too deep"),
        (JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes."), NO_MEMORY),
        (ExceptionGroup("tasks", [KeyError("x"), MemoryError()]), NO_MEMORY),
        (raised_from(OSError(errno.EROFS, "Read-only file system", "out")), "out: read-only file system"),
    ],
)
def test_a_failure_of_the_machine_is_one_line(error, line):
    assert format_error(error).lower() == line.lower()


@pytest.mark.parametrize(
    "error", [ValueError("shape (3, 4)"), KeyError("x"), JaxRuntimeError("INTERNAL: x"), OSError("no number")]
)
def test_a_defect_keeps_its_traceback(error):
    assert format_error(error) is None
    other = ValueError("a chain that bites its tail")
    error.__context__, other.__context__ = other, error
    assert format_error(error) is None


def test_a_failed_writing_names_a_file():
    """Also where the system's error does not: that of an open file which is written to."""
    for error, line in (
        (no_space(), "out: no space left on device"),
        (no_space("out/x"), "out/x: no space left on device"),
        (no_space("out"), "out: no space left on device"),
        (SafetensorError("I/O error (os error 28)"), r"out: cannot be written \(I/O error \(os error 28\)\)"),
        (ValueError(f"{WRITING}\nmore"), r"out: cannot be written \(No space left \[os_error_code='28'\]\)"),
    ):
        with pytest.raises(headjax.HeadjaxError, match=f"^{line}$"), writing(Path("out")):
            raise error
    for error in (
        headjax.HeadjaxError("x: wrong"),
        MemoryError(),
        OSError("no number"),
        KeyError("x"),
        KeyboardInterrupt(),
    ):
        with pytest.raises(type(error)) as caught, writing(Path("out")):
            raise error
        assert caught.value is error


def test_libraries_do_not_tell_it_again(monkeypatch, capfd, recwarn):
    """As asyncio does of tasks that failed beside another, and TensorStore's threads of those that nobody awaits."""

    async def never_awaited():
        pass

    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    for _ in range(2):  # commands of one process, each of which begins so
        silence_repeats()
    logging.getLogger("asyncio").error("Task exception was never retrieved")
    never_awaited()
    for text in ("Event loop is closed", "something else"):
        sys.unraisablehook(types.SimpleNamespace(exc_value=RuntimeError(text)))
    assert [str(each.exc_value) for each in told] == ["something else"]
    assert capfd.readouterr().err == ""
    assert not recwarn.list
