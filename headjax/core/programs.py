"""Room for compiled programs: XLA's programs for CPUs take memory, and maps of it, of which Linux limits the number."""

from __future__ import annotations

import ctypes
import functools
import gc
import sys
from collections.abc import Callable
from pathlib import Path

import jax

ALLOWED = Path("/proc/sys/vm/max_map_count")
"""File with the number of maps that Linux allows a process, 65,530 where nobody has changed it."""

MAPS = Path("/proc/self/maps")
"""File with a line for each map of this process."""

SHARE = 0.5
"""Share of the maps that may be taken before compiled programs are forgotten."""


def make_room() -> bool:
    """Forget all compiled programs where this process has used half of its memory maps; return whether it did.

    A program compiled for a CPU takes a map and more for each of its parts. So a few dozen models of different shapes
    in one process (a grid, a sweep, a notebook) would reach the limit, where LLVM ends the process. Programs that are
    needed again are compiled again. Other systems and accelerators have no such limit.

    Called where a model is trained, distilled or evaluated, before anything is compiled for it.
    """
    try:
        allowed = int(ALLOWED.read_text())
        with MAPS.open("rb") as lines:
            taken = sum(1 for _ in lines)
    except (OSError, ValueError):
        return False
    if taken <= SHARE * allowed:
        return False
    forget()
    return True


def forget() -> None:
    """Forget all compiled programs; what is needed again is compiled again.

    Called between parts of a study that need programs of their own, and many of them.
    """
    jax.clear_caches()
    gc.collect()
    trim()


def trim() -> None:
    """Return freed memory to the system, where the C library is glibc.

    It keeps what compilations and large arrays have freed, for each thread apart: after a few dozen of them more than a
    small model and its programs take.
    """
    trimming = _trimming()
    if trimming is not None:
        trimming(0)


@functools.cache
def _trimming() -> Callable[[int], int] | None:
    """Return glibc's `malloc_trim`; None where the C library is another one."""
    if sys.platform != "linux":
        return None
    found: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found
