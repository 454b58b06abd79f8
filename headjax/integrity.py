"""Sizes of written files, kept beside them, so that a truncated copy is found before anything is read from it."""

from __future__ import annotations

import json
from pathlib import Path

from headjax.errors import CheckpointError
from headjax.files import write_file

SIZES = "sizes.json"


def write_sizes(folder: Path) -> None:
    """Records the size of every file below a folder that is complete."""
    sizes = {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / SIZES
    }
    write_file(folder / SIZES, (json.dumps(sizes, indent=2) + "\n").encode())


def check_sizes(folder: Path) -> None:
    """Compares a folder with its record; without a record nothing is known and nothing is checked.

    Raises:
        CheckpointError: a file is missing or has another size; the message names it.
    """
    record = folder / SIZES
    if not record.is_file():
        return
    try:
        sizes = json.loads(record.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise CheckpointError(f"{record}: cannot be read") from None
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path}: missing")
        if path.stat().st_size != size:
            raise CheckpointError(f"{path}: has {path.stat().st_size} bytes instead of {size}; truncated?")
