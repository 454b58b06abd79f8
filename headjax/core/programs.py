"""Programs: the cache of compiled ones on disk, their eviction from memory, and a process's part among several.

JAX keeps compiled programs by a hash of the program, the versions, the flags and the machine; it reads and writes them
under a lock, so several commands may share the folder, and removes those that were used least recently.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import importlib
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threadpoolctl import threadpool_limits

if TYPE_CHECKING:
    import jax


PLACE = "JAX_COMPILATION_CACHE_DIR"
"""JAX's own variable: another folder, or empty for none."""

SETTINGS = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1", "JAX_COMPILATION_CACHE_MAX_SIZE": str(2 * 2**30)}
"""JAX's variables: the seconds of compilation from which on a program is kept, and the bytes of all that are."""


@dataclasses.dataclass(frozen=True)
class Share:
    """One of `count` equal parts, by its index: of the rows that hosts prepare, of the rows of every global batch."""

    index: int = 0
    count: int = 1


def keep_programs() -> None:
    """Let JAX keep compiled programs, to be called before it is imported; a folder that cannot be used is passed over.

    Does nothing where JAX's variable is set, or JAX imported: then another program has decided.
    """
    if PLACE in os.environ or "jax" in sys.modules:
        return
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headjax" / "compiled"
        new = not folder.is_dir()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no permission, a file in its place, or no home
        return
    os.environ[PLACE] = str(folder)
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore", "Error .* persistent compilation cache entry", UserWarning)
    if new:
        print(f"headjax: compiled programs are kept in {folder} ({PLACE}= turns this off)", file=sys.stderr)


ALLOWED = Path("/proc/sys/vm/max_map_count")
"""File with the number of maps that Linux allows a process, 65,530 where nobody has changed it."""

MAPS = Path("/proc/self/maps")
"""File with a line for each map of this process."""


def evict_compiled() -> bool:
    """Forget all compiled programs where this process has used half of its memory maps; return whether it did.

    A program compiled for a CPU takes a map and more for each of its parts, so a few dozen models of different shapes
    in one process would reach the limit, where LLVM ends the process. What is needed again is compiled again.
    """
    try:
        allowed = int(ALLOWED.read_text())
        with MAPS.open("rb") as lines:
            used = sum(1 for _ in lines)
    except (OSError, ValueError):  # other systems have no such limit
        return False
    if used <= allowed / 2:
        return False
    import jax  # here, so that `keep_programs` is there before it

    jax.clear_caches()
    gc.collect()
    free_memory()
    return True


def free_memory() -> None:
    """Return freed memory to the system, where the C library is glibc, which would keep it for each thread apart."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


def one_by_one(f: Callable[..., Any], *arrays: jax.Array) -> Any:
    """Return f of the slices of arrays along their first axis, computed one after another.

    What factorises matrices is called so. jaxlib's batched factorisations on a CPU wait, in a thread of XLA's pool, for
    work that they give to the same pool: as many of them at a time as it has threads never finish.
    """
    import jax

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
