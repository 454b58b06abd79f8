"""Faults of a disk put into one file operation of a command after the other, by `tests/slow/faults.c`, preloaded.

Run in a process of its own, which computes the command again and again with its compiled programs at hand:
`python -m tests.slow.faults COMMAND FAULT TRIES FOLDER`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from headjax.cli import main
from tests.slow import writers
from tests.slow.writers import WRITERS, Writer

LIBRARY = "HEADJAX_TEST_FAULTS"
"""Variable that names the compiled library to the process in which it is preloaded."""

NEVER = 2**40
"""Number of an operation that no command comes to."""


class Fault(NamedTuple):
    """A state that a disk gets into.

    Attributes:
        error: number of the error.
        everything: whether renaming and deleting fail as well.
    """

    error: int
    everything: bool


FAULTS = {"full": Fault(errno.ENOSPC, False), "read-only": Fault(errno.EROFS, True)}


class Attacked(NamedTuple):
    """The result of an attack on a command.

    Attributes:
        moments: number of operations of the command that the fault can hit.
        tried: number of those at which it was let in.
        unnoticed: number of those after which the command succeeded, and rightly: nothing was lost.
        failures: descriptions of broken promises.
    """

    moments: int
    tried: int
    unnoticed: int
    failures: list[str]


def missing() -> str | None:
    """Why no fault can be put into a process here; None where it can."""
    if not sys.platform.startswith("linux"):
        return "the library of faults is one for Linux"
    return None if shutil.which("cc") else "no C compiler"


def library(folder: Path) -> Path:
    """Compile `faults.c`."""
    source, target = Path(__file__).with_suffix(".c"), folder / "faults.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(target), str(source), "-ldl"], check=True)
    return target


def run_attack(name: str, fault: str, tries: int, folder: Path) -> Attacked:
    """Attack a command in a process of its own, see `attack`."""
    compiled = str(library(folder))
    words = [sys.executable, "-m", "tests.slow.faults", name, fault, str(tries), str(folder)]
    environment = os.environ | {"LD_PRELOAD": compiled, LIBRARY: compiled}
    done = subprocess.run(
        words, check=False, env=environment, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, timeout=3000
    )
    assert done.returncode == 0
    return Attacked(**json.loads(done.stdout.splitlines()[-1]))


def attack(name: str, fault: str, tries: int, folder: Path) -> Attacked:
    """Let a fault into a command at one of its file operations after the other.

    Args:
        name: the command, of `WRITERS`.
        fault: the fault, of `FAULTS`.
        tries: about the number of operations to try; 0 tries all. They lie a prime number apart, so that no kind of
            operation that comes again and again is the only one to be hit, and begin at one that the names decide.
        folder: for inputs, which stay for the next command, and outputs.
    """
    inputs, out, saved, writer = folder / "in", folder / "out", folder / "before", WRITERS[name]
    if not inputs.exists():
        writers.write_inputs(inputs)
    for place in (out, saved):
        shutil.rmtree(place, ignore_errors=True)
    saved.mkdir()
    if writer.before:
        assert run(writer.command(inputs, saved, before=True)).code == 0
    old = writer.read(saved)
    ended, _, moments = attempt(writer, inputs, saved, out, FAULTS[fault], NEVER)
    assert ended.code == 0, ended
    new = writer.read(out)
    distance = prime_from(-(-moments // tries)) if tries else 1
    tried = unnoticed = 0
    failures: list[str] = []
    for moment in range(1 + zlib.crc32(f"{name} {fault}".encode()) % distance, moments + 1, distance):
        ended, failed, _ = attempt(writer, inputs, saved, out, FAULTS[fault], moment)
        if not failed:  # this time the command had fewer operations
            failures += [f"{moment}: without the fault: {ended}"] if ended.code else []
            continue
        tried += 1
        unnoticed += ended.code == 0
        for problem in broken(writer, ended, inputs, out, old, new, FAULTS[fault].everything):
            failures.append(f"operation {moment}: {problem}")
    return Attacked(moments, tried, unnoticed, failures)


def attempt(writer: Writer, inputs: Path, saved: Path, out: Path, fault: Fault, moment: int) -> tuple[Ended, int, int]:
    """Run a command with a fault from one of its operations on.

    Returns:
        how it ended, how many operations failed, and how many there were.
    """
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(saved, out)
    faults = ctypes.CDLL(os.environ[LIBRARY])
    faults.fault_disarm.restype = faults.fault_seen.restype = ctypes.c_long
    faults.fault_arm(os.fsencode(out), ctypes.c_long(moment), fault.error, fault.everything)
    try:
        ended = run(writer.command(inputs, out))
    finally:
        failed = faults.fault_disarm()
    return ended, failed, faults.fault_seen()


def prime_from(least: int) -> int:
    """Return the smallest prime number of at least this size; 1 of 1 or less."""
    if least <= 1:
        return 1
    return next(each for each in itertools.count(least) if all(each % factor for factor in range(2, each)))


def broken(writer: Writer, ended: Ended, inputs: Path, out: Path, old: Any, new: Any, keeps: bool) -> Iterator[str]:
    """Yield what is wrong after a command that met a fault: with its message, with the files, with its next run."""
    if ended.code not in (0, 2):
        yield f"exit code {ended.code}: {ended.said[-1500:]}"
    said = re.sub(f"^{writer.note}", "", ended.said) if writer.note else ended.said
    if ended.code == 2 and not (said.startswith("headjax: error: ") and said.count("\n") == 1):
        yield f"not one line: {said[-1500:]}"
    elif ended.code == 2 and str(out) not in ended.said:
        yield f"no path: {ended.said}"
    try:
        writers.check_files(out)
        found = writer.read(out)
        if found not in ([new] if ended.code == 0 else [old, new]):
            yield f"another result after exit code {ended.code}: {found}, not {old} or {new}"
    except Exception:
        yield f"cannot be read after {ended.said}{traceback.format_exc()}"
    again = run(writer.command(inputs, out))
    if again.code:  # threads of this process may still have been writing what failed
        again = run_apart(writer.command(inputs, out))
    if again.code or writer.read(out) != new:
        yield f"the next run after {ended.said}: {again}"
    left = [str(path) for path in out.rglob(".*") if "@" in path.name]
    if left and not keeps:  # where nothing could be deleted, the next process does: this one takes them for its own
        yield f"left behind: {left}"


class Ended(NamedTuple):
    """Exit code of a command, and what it said on stderr."""

    code: int
    said: str


def _without_faults() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def run_apart(words: list[str]) -> Ended:
    """Run a command in a process of its own, to which no fault comes."""
    done = subprocess.run(
        [sys.executable, "-m", "headjax.cli", *words],
        check=False,
        env=_without_faults(),
        capture_output=True,
        text=True,
    )
    return Ended(done.returncode, done.stderr)


def run(words: list[str]) -> Ended:
    """Run a command in this process; an error with a traceback has the code 1."""
    said = io.StringIO()
    with (
        tempfile.TemporaryFile("w+") as low,
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        before = os.dup(2)
        os.dup2(low.fileno(), 2)  # libraries write to the descriptor
        try:
            code = main(words)
        except BaseException:
            code = 1
            traceback.print_exc()
        finally:
            os.dup2(before, 2)
            os.close(before)
        low.seek(0)
        return Ended(code, said.getvalue() + low.read())


if __name__ == "__main__":
    command, fault_name, number, place = sys.argv[1:]
    print(json.dumps(attack(command, fault_name, int(number), Path(place))._asdict()))
