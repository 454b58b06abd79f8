"""Compiled programs of the command line are kept in the user's cache folder, so that a second run need not compile.

JAX keeps them by a hash of the program, the versions, the flags and the machine; it reads and writes them under a lock,
so several commands may share the folder, and removes those that were used least recently.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

PLACE = "JAX_COMPILATION_CACHE_DIR"
"""JAX's own variable: another folder, or empty for none."""

SETTINGS = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
    "JAX_COMPILATION_CACHE_MAX_SIZE": str(2 * 2**30),
}
"""JAX's variables: the seconds of compilation from which on a program is kept, and the bytes of all that are."""


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
