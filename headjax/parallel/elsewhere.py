"""Calls in a process of their own: what crashes there leaves one line here."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

import jax

from headjax.errors import HeadjaxError

Given = ParamSpec("Given")
Returned = TypeVar("Returned")


class Crashed(HeadjaxError):
    """The process of a call ended before the call did; the message says what it left on standard error."""


class Elsewhere:
    """A process that computes on the CPU alone, for as long as the `with` block lasts.

    A bug in native code, such as a TPU compiler's, ends the process that it happens in. What the process writes to
    standard error is only read when it crashes.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="headjax-")
        self._said = Path(self._folder.name) / "stderr"
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, context, initializer=_begin, initargs=(str(self._said),))

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._folder.cleanup()

    def call(self, function: Callable[Given, Returned], *args: Given.args, **options: Given.kwargs) -> Returned:
        """What the function returns or raises there; function and arguments must be picklable.

        Raises:
            Crashed: the process ended.
        """
        try:
            return self._pool.submit(function, *args, **options).result()
        except BrokenProcessPool:
            raise Crashed(self._last_words()) from None

    def _last_words(self) -> str:
        said = self._said.read_text(errors="replace").splitlines() if self._said.exists() else []
        headlines = [re.split(r" \(| received by", line.strip("* "))[0] for line in said if line.startswith("***")]
        return headlines[0] if headlines else "out of memory, maybe"


def _begin(said: str) -> None:
    """Makes the process ready; `jax.config` rather than the environment, which libtpu reads too."""
    file = os.open(said, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, sys.stderr.fileno())
    os.close(file)
    jax.config.update("jax_platforms", "cpu")
