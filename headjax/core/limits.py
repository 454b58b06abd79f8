"""Limits on input: sizes of files, lines and unpacked data, and memory. Environment variables change them."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headjax.core.errors import ConfigError, DataError, HeadjaxError

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

_PIECE = 2**20


class Limit(NamedTuple):
    """A largest number of bytes.

    Attributes:
        variable: environment variable that sets another one, such as `500M` or `8G`.
        usual: the number without it.
    """

    variable: str
    usual: int

    def bytes(self) -> int:
        """Return the limit.

        Raises:
            HeadjaxError: the variable holds something else than a size.
        """
        text = os.environ.get(self.variable)
        return self.usual if text is None else _size(self.variable, text)

    def check(self, size: int, place: str) -> None:
        """Raise `DataError` for a size above the limit; the message starts with the place."""
        if size > self.bytes():
            raise DataError(f"{place}: more than {self.bytes():,} bytes; {self.variable} sets another limit")


FILE = Limit("HEADJAX_MAX_FILE", 8 * 2**30)
"""Largest file that is read as a whole."""

DOCUMENT = Limit("HEADJAX_MAX_DOCUMENT", 256 * 2**20)
"""Largest JSON file that describes a model, a tokenizer or prepared shards. Parsed, it takes ten times its size."""

UNPACKED = Limit("HEADJAX_MAX_UNPACKED", 2**30)
"""Most bytes that one packed file, or a device or pipe, gives where it is read as a whole."""

LINE = Limit("HEADJAX_MAX_LINE", 64 * 2**20)
"""Longest line, and longest cell of a table, where a file is read line by line."""

MEMORY = "HEADJAX_MEMORY"
"""Environment variable that replaces the amount of memory that the system states."""


def read_all(stream: io.BufferedIOBase, place: Path) -> bytes:
    """Return the rest of a stream whose size nobody knows, at most `UNPACKED`, without asking for more memory.

    Raises:
        DataError: it has more.
    """
    pieces, size = [], 0
    while piece := stream.read(_PIECE):
        size += len(piece)
        UNPACKED.check(size, str(place))
        pieces.append(piece)
    return b"".join(pieces)


def lines_of(stream: io.BufferedIOBase, place: Path) -> Iterator[bytes]:
    """Yield the lines of a stream, each at most `LINE` long.

    Raises:
        DataError: a line is longer.
    """
    most, number = LINE.bytes(), 1
    while line := stream.readline(most + 1):
        if len(line) > most:
            LINE.check(len(line), f"{place}: line {number}")
        yield line
        number += 1


def host_memory() -> int | None:
    """Return the bytes of memory of this machine, swap included, or of its container; None where nobody says.

    Raises:
        HeadjaxError: the environment variable `MEMORY` holds something else than a size.
    """
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
    """Check that the arrays of a field can fit into memory, before anything is built for it.

    Args:
        field: path of the config's field, or the option.
        needed: bytes that it takes at the very least.
        there: bytes of memory; None where nobody says.
        what: what takes them, for the message.

    Raises:
        ConfigError: it takes more than there is.
    """
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
