"""Memory of this machine, and a check that arrays can fit into it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from headjax.core.errors import ConfigError, HeadjaxError

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

MEMORY = "HEADJAX_MEMORY"
"""Environment variable that replaces the amount of memory that the system states."""


def host_memory() -> int | None:
    """Return the bytes of memory of this machine, swap included, or of its container; None where nobody says."""
    if MEMORY in os.environ:
        return _size(MEMORY, os.environ[MEMORY])
    try:
        said = dict(re.findall(r"^(\w+): +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE))
        there = 1024 * (int(said["MemTotal"]) + int(said.get("SwapTotal", 0)))
    except (OSError, KeyError):
        return None
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            there = min(there, int(Path(file).read_text()))
        except (OSError, ValueError):  # no such file, or no limit
            continue
    return there


def check_memory(field: str, needed: int, there: int | None, what: str) -> None:
    """Check that the arrays of a field can fit into memory, before anything is built for it."""
    if there is not None and needed > there:
        raise ConfigError(
            f"{field}: {what} take at least {needed / 1e9:,.3g} GB of memory, there are {there / 1e9:,.3g}; "
            f"headjax plan computes the needs of a step ({MEMORY} says how much there is)"
        )


def _size(variable: str, text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15})([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None or not int(found[1]):
        raise HeadjaxError(f"{variable}: expected a number of bytes such as 500M or 8G, got {text[:60]!r}")
    return int(found[1]) * _UNITS[found[2].upper()]
