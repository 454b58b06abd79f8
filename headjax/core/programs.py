"""Room for compiled programs, which take memory and maps of it, of which Linux limits the number; threads of BLAS."""

from __future__ import annotations

import ctypes
import gc
import importlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
from threadpoolctl import threadpool_limits

ALLOWED = Path("/proc/sys/vm/max_map_count")
"""File with the number of maps that Linux allows a process, 65,530 where nobody has changed it."""

MAPS = Path("/proc/self/maps")
"""File with a line for each map of this process."""


def make_room() -> bool:
    """Forget all compiled programs where this process has used half of its memory maps; return whether it did.

    A program compiled for a CPU takes a map and more for each of its parts, so a few dozen models of different shapes
    in one process would reach the limit, where LLVM ends the process. What is needed again is compiled again.
    """
    try:
        allowed = int(ALLOWED.read_text())
        with MAPS.open("rb") as lines:
            taken = sum(1 for _ in lines)
    except (OSError, ValueError):  # other systems have no such limit
        return False
    if taken <= allowed / 2:
        return False
    jax.clear_caches()
    gc.collect()
    trim()
    return True


def trim() -> None:
    """Return freed memory to the system, where the C library is glibc, which would keep it for each thread apart."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


def one_by_one(f: Callable[..., Any], *arrays: jax.Array) -> Any:
    """Return f of the slices of arrays along their first axis, computed one after another.

    What factorises matrices is called so. jaxlib's batched factorisations on a CPU wait, in a thread of XLA's pool, for
    work that they give to the same pool: as many of them at a time as it has threads never finish.
    """
    return jax.lax.map(lambda slices: f(*slices), arrays)


def one_blas_thread() -> AbstractContextManager[Any]:
    """Return a context in which BLAS and LAPACK compute in the calling thread.

    On CPUs jaxlib factorises with SciPy's OpenBLAS, whose threads spin while they wait: decompositions of a six-layer
    model took 11 s instead of 1.1 s. Asynchronous results have to be waited for inside the context.
    """
    # Only loaded libraries can be limited, so the library that jaxlib uses through SciPy is loaded first.
    importlib.import_module("scipy.linalg.cython_lapack")
    limits: AbstractContextManager[Any] = threadpool_limits(1, user_api="blas")
    return limits
