"""Calls in another process: a crash there is an error of one line here."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import jax

from headjax.core.errors import HeadjaxError

Given = ParamSpec("Given")
Returned = TypeVar("Returned")


class Crashed(HeadjaxError):
    """The process of a call ended before the call did; the message has the last lines of its standard error."""


class Elsewhere:
    """A process that computes on the CPU alone, for as long as the `with` block lasts.

    A bug in native code, such as a TPU compiler's, ends the process that it happens in. The standard error of the
    process is only read when it crashes.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="headjax-")
        self._said = Path(self._folder.name) / "stderr"
        context = multiprocessing.get_context("spawn")
        self._calls, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, str(self._said)), daemon=True)
        self._process.start()
        # The process then holds the only sending end, so receiving ends when the process does.
        theirs.close()

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(self, *raised: object) -> None:
        self._calls.close()
        # A call that was interrupted may be in native code, which hears of nothing else.
        self._process.kill()
        self._process.join()
        self._folder.cleanup()

    def call(self, function: Callable[Given, Returned], *args: Given.args, **options: Given.kwargs) -> Returned:
        """Return the function's result there, or raise its error; function and arguments must be picklable.

        Raises:
            Crashed: the process ended.
        """
        try:
            self._calls.send((function, args, options))
            returned, answer = self._calls.recv()
        except (EOFError, OSError):
            raise Crashed(self._last_words()) from None
        if returned:
            return answer
        raise answer

    def _last_words(self) -> str:
        said = self._said.read_text(errors="replace").splitlines() if self._said.exists() else []
        headlines = [re.split(r" \(| received by", line.strip("* "))[0] for line in said if line.startswith("***")]
        return headlines[0] if headlines else "out of memory, maybe"


def _serve(calls: Connection, said: str) -> None:
    """Serve calls one after another until the connection ends; the process runs this."""
    file = os.open(said, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, sys.stderr.fileno())
    os.close(file)
    # Not the environment's JAX_PLATFORMS, which libtpu reads too.
    jax.config.update("jax_platforms", "cpu")
    while True:
        answer: tuple[bool, Any]
        try:
            function, args, options = calls.recv()
        except EOFError:
            return
        try:
            answer = True, function(*args, **options)
        except Exception as error:
            answer = False, error
        calls.send(answer)
