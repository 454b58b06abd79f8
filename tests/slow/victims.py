"""Commands in processes that are killed. They fork from one that has imported headjax, which saves seconds of each."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.forkserver import set_forkserver_preload
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import headjax.head_report.study
import headjax.training.loop  # noqa: F401  (what commands import late, to be there before a process forks)
from headjax.cli import main
from tests.slow.writers import check_files

CONTEXT = multiprocessing.get_context("forkserver")


def start(words: list[str], log: Path, environment: Mapping[str, str]) -> BaseProcess:
    """Start a command in a process of its own, whose output goes to a file."""
    set_forkserver_preload(["tests.slow.victims"])
    process = CONTEXT.Process(target=_run, args=(words, str(log), dict(environment)))
    process.start()
    return process


def _run(words: list[str], log: str, environment: dict[str, str]) -> None:
    """Run a command; JAX has no backend before, so that forking was sound."""
    os.environ.update(environment)
    with open(log, "w") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    sys.exit(main(words))


def finish(process: BaseProcess, log: Path) -> None:
    """Wait for a command that comes to its end."""
    process.join(1200)
    assert process.exitcode == 0, (process.exitcode, log.read_text()[-3000:])


def killed(process: BaseProcess, seconds: float, begins: Callable[[], bool] | None, log: Path) -> bool:
    """Kill a process after some seconds, counted from when its work has begun to show; return False if it had ended."""
    while begins is not None and process.exitcode is None and not begins():
        time.sleep(0.002)
    process.join(seconds)
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL), (process.exitcode, log.read_text()[-3000:])
    return process.exitcode != 0


class Reader:
    """A process that reads outputs again and again while victims write them, but while somebody holds `resting`."""

    def __init__(self, out: Path, environment: Mapping[str, str]) -> None:
        self.resting, self._ended, self._said = CONTEXT.Lock(), CONTEXT.Event(), CONTEXT.SimpleQueue()
        arguments = (str(out), dict(environment), self.resting, self._ended, self._said)
        self._process = CONTEXT.Process(target=_read, args=arguments)
        self._process.start()

    def end(self) -> tuple[int, list[str]]:
        """End it; return the number of readings and what was wrong."""
        self._ended.set()
        found: tuple[int, list[str]] = self._said.get()
        self._process.join()
        return found


def _read(out: str, environment: dict[str, str], resting: Any, ended: Any, said: Any) -> None:
    os.environ.update(environment)
    os.nice(5)
    readings, wrong = 0, []
    while not ended.wait(0.05):
        with resting:
            try:
                check_files(out)
            except Exception as error:
                wrong.append(f"{type(error).__name__}: {error}")
        readings += 1
    said.put((readings, wrong[:5]))
