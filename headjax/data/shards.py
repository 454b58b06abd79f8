"""Shards: records on disk, read by index.

A shard is an ArrayRecord file (https://github.com/google/array_record) whose records are safetensors files. Beside it
lies a `.npy` file with its records' numbers of tokens.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from headjax.core.errors import DataError
from headjax.data.examples import Record, Records
from headjax.storage import integrity
from headjax.storage.files import first_line, hidden, leftovers, read_bytes, write_file
from headjax.storage.integrity import Damage, Entry
from headjax.storage.paths import copy_file, is_bucket

SUFFIX = ".array_record"

WRITING = "group_size:1"
READING = "readahead_buffer_size:0,max_parallelism:0"
"""ArrayRecord's options for records that are read one by one in any order."""

OPEN_SHARDS = 512
"""Greatest number of shards open at the same time; systems often allow a process 1024 open files."""

_NAME = re.compile(rf"(train|validation)-(\d{{5,9}}){re.escape(SUFFIX)}")
_SIZES = re.compile(
    rb"\x93NUMPY\x01\0..\{'descr': '<i([48])', 'fortran_order': False, 'shape': \((\d+),\), \} *\n", re.S
)


@dataclasses.dataclass(frozen=True)
class Shard:
    """Entry of a shard in the manifest.

    Attributes:
        name: file name, `train-00000.array_record`.
        split: `train` or `validation`.
        examples: number of records.
        rows: fingerprint of the rows that were encoded.
        counts: counts of the form.
        bytes: size of the file.
        crc32: checksums of its blocks, see `headjax.storage.integrity`; empty in folders of earlier versions.
        sizes_crc32: checksum of the file of sizes.
    """

    name: str
    split: str
    examples: int
    rows: str
    counts: Mapping[str, int]
    bytes: int = 0
    crc32: tuple[str, ...] = ()
    sizes_crc32: str = ""

    def __post_init__(self) -> None:
        known = _NAME.fullmatch(self.name)
        if known is None or known[1] != self.split or self.examples < 0:
            raise DataError(f"shard {self.name!r}: expected the name of a file of {self.split}, and its examples")

    @property
    def number(self) -> int:
        """Its number in its split."""
        return number_of(self.name)

    def damages(self, folder: Path) -> Iterator[Damage]:
        """Yield the files of the shard that differ from their checksums, or are missing."""
        shard = folder / self.name
        if self.crc32:
            sizes = Entry(len(_header(self.examples)) + 4 * self.examples, (self.sizes_crc32,))
            found = (
                integrity.damage_of(shard, Entry(self.bytes, self.crc32)),
                integrity.damage_of(_beside(shard), sizes),
            )
            yield from (damage for damage in found if damage is not None)


def shard_name(split: str, number: int) -> str:
    """Return the name of a shard."""
    return f"{split}-{number:05d}{SUFFIX}"


def number_of(name: str) -> int:
    """Return the number of a shard, or of its sizes, by its name."""
    return int(name.partition("-")[2].partition(".")[0])


def is_shard(name: str) -> bool:
    """Return whether a file of this name is a shard or has one's sizes."""
    return _NAME.fullmatch(re.sub(r"\.npy$", SUFFIX, name)) is not None


def write_shard(path: Path, records: Records, sizes: np.ndarray) -> dict[str, Any]:
    """Write a shard and its records' sizes, and return size and checksums, fields of `Shard`.

    The shard gets its name when both are complete.

    Args:
        path: its file.
        records: the records.
        sizes: `[records]` their numbers of tokens.

    Raises:
        DataError: the shard cannot be written (a full disk); no partial file is left.
    """
    if is_bucket(path):  # the library writes files of this machine alone
        with tempfile.TemporaryDirectory(prefix="headjax-") as folder:
            local = Path(folder) / path.name
            sums = write_shard(local, records, sizes)
            with _writing(path):
                copy_file(_beside(local), _beside(path))
                copy_file(local, path)
        return sums
    partial = hidden(path, "new")
    with _writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_records(partial, records)
            write_file(_beside(path), _header(len(sizes)) + sizes.astype("<i4").tobytes())
            shard, beside = integrity.entry_of(partial), integrity.entry_of(_beside(path))
            partial.replace(path)
            for entry, _ in leftovers(path):
                entry.unlink(missing_ok=True)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()
    return {"bytes": shard.size, "crc32": shard.sums, "sizes_crc32": (beside.sums or ("",))[0]}


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # the library turns the system's errors into RuntimeError
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise DataError(f"{path}: cannot be written ({reason})") from None


def _write_records(file: Path, records: Records) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(file), WRITING)
    try:
        for record in (records[index] for index in range(len(records))):
            writer.write(safetensors.numpy.save({name: np.ascontiguousarray(a) for name, a in record.items()}))
    finally:
        writer.close()
    with file.open("rb") as written:
        os.fsync(written.fileno())


def remove_shard(path: Path) -> None:
    """Delete a shard and its sizes."""
    for file in (path, _beside(path)):
        file.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    """Return the path of the sizes of a shard's records."""
    return path.with_suffix(".npy")


def _header(count: int) -> bytes:
    """Return NumPy's header of an array int32 `[count]`."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<i4", "fortran_order": False, "shape": (count,)})
    return file.getvalue()


def read_sizes(path: Path, shard: Shard, limit: int) -> np.ndarray:
    """Return the numbers of tokens `[records]` of a shard's records.

    Args:
        path: the shard's file.
        shard: its entry in the manifest.
        limit: greatest number of tokens that its form gives a record.

    Raises:
        DataError: the file of sizes is missing or damaged.
    """
    file, count = _beside(path), shard.examples
    data = read_bytes(file)
    known = _SIZES.match(data)
    if known is None or int(known[2]) != count or len(data) != known.end() + count * int(known[1]):
        raise DataError(f"{file}: damaged: not the sizes of {count:,} records")
    if shard.sizes_crc32 and integrity.sum_of(data) != shard.sizes_crc32:
        raise DataError(f"{file}: damaged: differs from its checksum")
    sizes = np.frombuffer(data, f"<i{known[1].decode()}", offset=known.end())
    if count and not (sizes.min() >= 1 and sizes.max() <= limit):
        raise DataError(f"{file}: damaged: sizes from {sizes.min()} to {sizes.max()}, at most {limit} are possible")
    return sizes


class ShardRecords:
    """The records of several shards by index. Threads may share it, and it can be pickled.

    Args:
        paths: the shards.
        counts: number of records that each must have.

    Raises:
        DataError: a shard that is missing or has another number of records; the message starts with its path.
    """

    def __init__(self, paths: Sequence[Path], counts: Sequence[int]) -> None:
        self.paths, self.counts = list(paths), list(counts)
        self._ends = np.cumsum(self.counts)
        for path, count in zip(self.paths, self.counts, strict=True):
            found = self._open(path).num_records() if path.is_file() else None
            if found != count:
                held = "missing" if found is None else f"damaged: it holds {found:,} of {count:,} records"
                raise DataError(f"{path}: {held}; remove it and prepare again")
        self._readers: dict[int, Any] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> Record:
        if not 0 <= index < len(self):
            raise IndexError(index)
        shard = int(np.searchsorted(self._ends, index, side="right"))
        reader = self._reader(shard)
        try:
            (data,) = reader.read([index - int(self._ends[shard]) + self.counts[shard]])
            found: dict[str, np.ndarray] = safetensors.numpy.load(data)
        except (RuntimeError, IndexError, ValueError, safetensors.SafetensorError) as error:
            raise DataError(f"{self.paths[shard]}: damaged: {first_line(error)}") from None
        return found

    def _reader(self, shard: int) -> Any:
        """Return the open reader of a shard; several threads may read from it at a time."""
        with self._lock:
            if shard not in self._readers:
                if len(self._readers) == OPEN_SHARDS:
                    del self._readers[next(iter(self._readers))]  # closes with the last thread that reads from it
                self._readers[shard] = self._open(self.paths[shard])
            return self._readers[shard]

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self.paths, "counts": self.counts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @staticmethod
    def _open(path: os.PathLike[str]) -> Any:
        from array_record.python.array_record_module import ArrayRecordReader

        try:
            return ArrayRecordReader(str(path), READING)
        except RuntimeError as error:
            raise DataError(f"{path}: cannot be read ({first_line(error)})") from None
