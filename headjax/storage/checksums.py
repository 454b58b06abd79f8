"""Checksums of folders: `checksums.json` has size and CRC-32 of every file, compared when the folder is read."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import NamedTuple

from headjax.core.errors import CheckpointError, DamagedError
from headjax.storage.files import write_file
from headjax.storage.paths import files_below

RECORD = "checksums.json"


class Entry(NamedTuple):
    """Size in bytes and CRC-32 of a file."""

    bytes: int
    crc32: str


def write_checksums(folder: Path) -> None:
    """Record every file below a folder that is complete."""
    names = [name for name in files_below(folder) if name != RECORD]
    record = {name: entry_of(folder / name)._asdict() for name in names}
    write_file(folder / RECORD, (json.dumps(record, indent=1) + "\n").encode())


def entry_of(file: Path) -> Entry:
    """Return size and checksum of a file."""
    size = crc = 0
    with file.open("rb") as opened:
        while data := opened.read(2**20):
            size, crc = size + len(data), zlib.crc32(data, crc)
    return Entry(size, f"{crc:08x}")


def read_checksums(folder: Path) -> dict[str, Entry]:
    """Return the record of a folder by the paths of its files; empty for a folder without one."""
    file = folder / RECORD
    if not file.is_file():
        return {}
    try:
        return {name: Entry(**entry) for name, entry in json.loads(file.read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        raise DamagedError(f"{file}: damaged, it is no record of files") from None


def check(folder: Path) -> None:
    """Compare a folder with its record; without a record nothing is known and nothing is compared."""
    for name, entry in read_checksums(folder).items():
        _compare(folder / name, entry)


def read_document(folder: Path, name: str) -> str:
    """Return the text of one file of a folder, compared with the folder's record."""
    file, entry = folder / name, read_checksums(folder).get(name)
    if entry is not None:
        _compare(file, entry)
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file}: cannot be read ({error})") from None


def _compare(file: Path, entry: Entry) -> None:
    try:
        found = entry_of(file)
    except FileNotFoundError:
        raise DamagedError(f"{file}: missing") from None
    except OSError as error:
        raise DamagedError(f"{file}: cannot be read ({error})") from None
    if found != entry:
        size = f"{found.bytes} bytes instead of {entry.bytes}"
        why = size if found.bytes != entry.bytes else f"its bytes differ from their checksum in {RECORD}"
        raise DamagedError(f"{file}: damaged, {why}")
