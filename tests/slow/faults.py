"""Faults of a disk put into file operations of a command by `tests/slow/faults.c`, preloaded.

Run in a process of its own, which computes the commands again and again with their compiled programs at hand:
`python -m tests.slow.faults TRIES FOLDER COMMAND ...` prints what `attack` returns for each.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headjax.cli import main
from tests.slow import victims, writers
from tests.slow.writers import WRITERS, Writer

LIBRARY = "HEADJAX_TEST_FAULTS"
"""Variable that names the compiled library to the process in which it is preloaded."""

NEVER = 2**40
"""Number of an operation that no command comes to."""

FAULTS = {"full": (errno.ENOSPC, False), "read-only": (errno.EROFS, True)}
"""The error's number, and whether renaming and deleting fail as well."""


Found = tuple[int, int, list[str]]
"""Operations that a fault can hit, those at which it was let in, and the broken promises."""


def missing() -> str | None:
    """Why no fault can be put into a process here; None where it can."""
    return None if sys.platform.startswith("linux") and shutil.which("cc") else "needs Linux and a C compiler"


def run_attack(names: Sequence[str], tries: int, folder: Path) -> dict[str, dict[str, Found]]:
    """Attack commands with every fault in a process of their own, see `attack`."""
    library = str(folder / "faults.so")
    source = str(Path(__file__).with_suffix(".c"))
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    words = [sys.executable, "-m", "tests.slow.faults", str(tries), str(folder), *names]
    environment, root = os.environ | {"LD_PRELOAD": library, LIBRARY: library}, Path(__file__).parents[2]
    done = subprocess.run(words, check=True, env=environment, cwd=root, stdout=subprocess.PIPE, timeout=3000)
    found: dict[str, dict[str, Found]] = json.loads(done.stdout.splitlines()[-1])
    return found


def attack(name: str, tries: int, inputs: Path, folder: Path) -> dict[str, Found]:
    """Let each fault into a command at some of its file operations, or at all of them for 0 tries."""
    out, saved, writer = folder / "out", folder / "before", WRITERS[name]
    saved.mkdir(parents=True)
    if writer.before:
        assert run(writer.command(inputs, saved, before=True)).code == 0
    old, found = writer.read(saved), {}
    for fault, (_, keeps) in FAULTS.items():
        ended, _, moments = attempt(writer, inputs, saved, out, fault, NEVER)
        assert ended.code == 0, ended
        new, tried, failures = writer.read(out), 0, []
        count = min(tries or moments, moments)
        # A run may have a few operations less, so that few tries are not made at the last ones.
        last = moments if count == moments else moments - moments // 8
        for moment in sorted(random.Random(f"{name} {fault}").sample(range(1, last + 1), min(count, last))):
            ended, failed, _ = attempt(writer, inputs, saved, out, fault, moment)
            if failed:
                tried += 1
                problems = broken(writer, ended, inputs, out, old, new, keeps)
                failures += [f"operation {moment}: {problem}" for problem in problems]
            elif ended.code:  # this time the command had fewer operations
                failures.append(f"{moment}: without the fault: {ended}")
        found[fault] = (moments, tried, failures)
    return found


class Ended(NamedTuple):
    """Exit code of a command, and what it said on stderr."""

    code: int
    said: str


def attempt(writer: Writer, inputs: Path, saved: Path, out: Path, fault: str, moment: int) -> tuple[Ended, int, int]:
    """Run a command with a fault from an operation on: how it ended, how many operations failed, and how many were."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(saved, out)
    faults = ctypes.CDLL(os.environ[LIBRARY])
    faults.fault_disarm.restype = faults.fault_seen.restype = ctypes.c_long
    faults.fault_arm(os.fsencode(out), ctypes.c_long(moment), *FAULTS[fault])
    try:
        ended = run(writer.command(inputs, out))
    finally:
        failed = faults.fault_disarm()
    return ended, failed, faults.fault_seen()


def broken(writer: Writer, ended: Ended, inputs: Path, out: Path, old: Any, new: Any, keeps: bool) -> Iterator[str]:
    """Yield what is wrong after a command that met a fault: with its message, with the files, with its next run."""
    if ended.code not in (0, 2):
        yield f"exit code {ended.code}: {ended.said[-1500:]}"
    said = re.sub(f"^{writer.note}", "", ended.said) if writer.note else ended.said
    if ended.code == 2 and not (said.startswith("headjax: error: ") and said.count("\n") == 1 and str(out) in said):
        yield f"not one line with the path: {said[-1500:]}"
    try:
        writers.check_files(out)
        found = writer.read(out)
        if found not in ([new] if ended.code == 0 else [old, new]):
            yield f"another result after exit code {ended.code}: {found}, not {old} or {new}"
    except Exception:
        yield f"cannot be read after {ended.said}{traceback.format_exc()}"
    words = writer.command(inputs, out)
    again = run(words)
    if again.code:  # what this process could not delete it takes for its own
        log = out.parent / "log"
        process = victims.start(words, log, {})
        process.join()
        again = Ended(process.exitcode or 0, log.read_text())
    if again.code or writer.read(out) != new:
        yield f"the next run after {ended.said}: {again}"
    left = [str(path) for path in out.rglob(".*") if "@" in path.name]
    if left and not keeps:  # where nothing could be deleted, the next process does: this one takes them for its own
        yield f"left behind: {left}"


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
    number, place, *commands = sys.argv[1:]
    writers.write_inputs(Path(place) / "in")
    print(json.dumps({each: attack(each, int(number), Path(place) / "in", Path(place) / each) for each in commands}))
