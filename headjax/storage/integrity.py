"""Integrity of folders: a record of every file's size and checksums, written once and compared whenever it is read.

A record is the file `checksums.json` of a folder. It has the size of each file below it and the CRC-32 of each of its
blocks of 64 MiB, so that several threads share a large file. Folders of earlier versions have sizes alone
(`sizes.json`) or no record, and are read all the same.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import zlib
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from headjax.core.errors import DamagedError, DataError
from headjax.storage.files import read_document, write_file
from headjax.storage.formats import check_format
from headjax.storage.paths import file_sizes, is_bucket

RECORD = "checksums.json"
SIZES = "sizes.json"
"""Record of an earlier headjax."""

FORMAT = 1
"""Version of the record; a reader refuses a newer one."""

BLOCK = 2**26
"""Bytes of a file that one checksum is of."""

SMALL = 2**20
"""Size in bytes of files that are compared before anything else is done with a folder."""

AT_ONCE = 2**18
"""Bytes that are read at once: as many as stay in a core's own cache until they are summed."""

THREADS = min(4, os.cpu_count() or 1)


class Entry(NamedTuple):
    """Entry of a file in a record.

    Attributes:
        size: in bytes.
        sums: CRC-32 of its blocks, as hexadecimal digits; None where the record has sizes alone.
    """

    size: int
    sums: tuple[str, ...] | None


class Damage(NamedTuple):
    """A file that is not as it was written.

    Attributes:
        file: its path.
        problem: the difference, in a few words.
    """

    file: Path
    problem: str


def write_record(folder: Path) -> None:
    """Record size and checksums of every file below a folder that is complete.

    Raises:
        HeadjaxError: the record cannot be written.
    """
    sizes = {name: size for name, size in file_sizes(folder).items() if name != RECORD}
    with ThreadPoolExecutor(THREADS) as pool:
        sums = {
            name: [pool.submit(_sum, folder / name, start) for start in _starts(size)] for name, size in sizes.items()
        }
        entries = {
            name: {"bytes": size, "crc32": [each.result() for each in sums[name]]} for name, size in sizes.items()
        }
    record = {"format": FORMAT, "files": entries, "crc32": _sum_of_entries(entries)}
    write_file(folder / RECORD, (json.dumps(record, indent=1) + "\n").encode())


def entry_of(path: Path) -> Entry:
    """Return size and checksums of a file.

    Raises:
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    return Entry(size, tuple(_sum(path, start) for start in _starts(size)))


def damage_of(path: Path, entry: Entry, data: bytes | None = None) -> Damage | None:
    """Return the damage of a file; None for one that fits its entry.

    Args:
        path: the file.
        entry: what it was when it was written.
        data: its bytes where they have been read already.
    """
    there = (path.stat().st_size if path.is_file() else None) if data is None else len(data)
    return _compare(path, entry, there, data)


def sum_of(data: bytes) -> str:
    """Return the CRC-32 of data, as hexadecimal digits."""
    return f"{zlib.crc32(data):08x}"


def read_record(folder: Path) -> dict[str, Entry] | None:
    """Return a folder's record: entries by the path below the folder; None for a folder without one.

    Raises:
        DamagedError: the record itself is damaged.
        CheckpointError: its format is newer than this headjax reads.
        DataError: it is larger than `headjax.core.limits.DOCUMENT`.
    """
    path = folder / RECORD
    if not path.is_file():
        return _read_sizes(folder / SIZES)
    data = _read_object(path)
    check_format(data, FORMAT, path)
    entries = data.get("files")
    if not isinstance(entries, dict) or data.get("crc32") != _sum_of_entries(entries):
        raise DamagedError(f"{path}: damaged, it does not fit its own checksum")
    return {name: Entry(entry["bytes"], tuple(entry["crc32"])) for name, entry in entries.items()}


def damages(folder: Path) -> Iterator[Damage]:
    """Yield the files of a folder that are missing, cut, longer or changed; none for a folder without a record.

    Raises:
        CheckpointError: the record is damaged or too new.
    """
    entries = read_record(folder) or {}
    sizes = _sizes(folder, entries)
    with ThreadPoolExecutor(THREADS) as pool:
        found = pool.map(lambda name: _compare(folder / name, entries[name], sizes.get(name)), entries)
        yield from (damage for damage in found if damage is not None)


def check(folder: Path) -> None:
    """Compare a folder with its record; without a record nothing is known and nothing is compared.

    Raises:
        DamagedError: a file is missing, has another size or other bytes; the message names it.
        CheckpointError: the record's format is too new.
    """
    with checking(folder):
        pass


@contextlib.contextmanager
def checking(folder: Path, entries: Mapping[str, Entry] | None = None) -> Iterator[None]:
    """Compare a folder with its record while it is read, see `check`; `entries` are those to compare, None is all.

    Sizes and small files are compared before the body begins, large ones by threads beside it. Where the body fails
    and a file turns out to be damaged, that damage is the error.
    """
    chosen = (read_record(folder) or {}) if entries is None else entries
    large = {name: entry for name, entry in chosen.items() if entry.sums is not None and entry.size > SMALL}
    sizes = _sizes(folder, chosen)

    def compare(name: str) -> Damage | None:
        entry = chosen[name]._replace(sums=None) if name in large else chosen[name]
        return _compare(folder / name, entry, sizes.get(name))

    pool = ThreadPoolExecutor(THREADS)
    try:
        # A small object of a bucket takes its time whatever its size.
        for damage in (pool.map if is_bucket(folder) else map)(compare, chosen):
            refuse(damage)
        running = [
            pool.submit(_compare_block, folder / name, entry, block)
            for name, entry in large.items()
            for block in range(len(entry.sums or ()))
        ]
        try:
            yield
        finally:
            for each in running:
                refuse(each.result())
    finally:
        pool.shutdown(cancel_futures=True)


def refuse(damage: Damage | None) -> None:
    """Raise `DamagedError` for a damage."""
    if damage is not None:
        raise DamagedError(f"{damage.file}: {damage.problem}") from None


def _sizes(folder: Path, names: Collection[str]) -> dict[str, int]:
    """Return the sizes in bytes of those files of a folder that are there."""
    if is_bucket(folder):
        return file_sizes(folder)
    return {name: (folder / name).stat().st_size for name in names if (folder / name).is_file()}


def _compare(path: Path, entry: Entry, size: int | None, data: bytes | None = None) -> Damage | None:
    """Return the damage of a file of this size; None for an intact one."""
    if size is None:
        return Damage(path, "missing")
    if size != entry.size:
        return Damage(path, f"has {size} bytes instead of {entry.size}; truncated?")
    found = (_compare_block(path, entry, block, data) for block in range(len(entry.sums or ())))
    return next((damage for damage in found if damage is not None), None)


def _compare_block(path: Path, entry: Entry, block: int, data: bytes | None = None) -> Damage | None:
    try:
        found = _sum(path, block * BLOCK, data)
    except OSError as error:
        return Damage(path, f"cannot be read ({error.strerror})")
    if entry.sums is None or found == entry.sums[block]:
        return None
    end = min((block + 1) * BLOCK, entry.size)
    return Damage(path, f"damaged: bytes {block * BLOCK} to {end} differ from their checksum")


def _starts(size: int) -> range:
    """Return where the blocks of a file begin."""
    return range(0, size, BLOCK)


def _sum(path: Path, start: int, data: bytes | None = None) -> str:
    """Return the CRC-32 of the block of a file that begins at `start`."""
    buffer, found, left = memoryview(bytearray(AT_ONCE)), 0, BLOCK
    with path.open("rb", buffering=0) if data is None else io.BytesIO(data) as file:
        file.seek(start)
        while left and (count := file.readinto(buffer[: min(left, AT_ONCE)])):
            found, left = zlib.crc32(buffer[:count], found), left - count
    return f"{found:08x}"


def _sum_of_entries(entries: Mapping[str, Any]) -> str:
    return sum_of(json.dumps(entries, sort_keys=True).encode())


def _read_sizes(path: Path) -> dict[str, Entry] | None:
    if not path.is_file():
        return None
    sizes = _read_object(path)
    if not all(isinstance(size, int) for size in sizes.values()):
        raise DamagedError(f"{path}: damaged, it holds something else than sizes")
    return {name: Entry(size, None) for name, size in sizes.items()}


def _read_object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(read_document(path))
    except DataError:  # larger than a limit, which is no damage
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError(f"{path}: cannot be read ({type(error).__name__})") from None
    if not isinstance(data, dict):
        raise DamagedError(f"{path}: damaged, it is no JSON object")
    return data
