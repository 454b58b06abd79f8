"""Shards of records: ArrayRecord files (https://github.com/google/array_record), each record a safetensors file."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from headjax.core.errors import DataError
from headjax.data.prepared.form import Record

WRITING = "group_size:1"
READING = "readahead_buffer_size:0,max_parallelism:0"
"""Options for records that are read one by one in any order."""

PARTIAL = ".partial"

OPEN_SHARDS = 512
"""Shards that are open at the same time at most; systems often allow a process 1024 open files."""


def write_shard(path: Path, records: Sequence[Record], sizes: np.ndarray) -> None:
    """Writes a shard and, beside it, its records' sizes (`.npy`); the shard appears under its name when both are whole.

    Raises:
        DataError: it cannot be written (a full disk); nothing of it is left then.
    """
    from array_record.python.array_record_module import ArrayRecordWriter

    partial, beside = path.with_name(path.name + PARTIAL), sizes_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = ArrayRecordWriter(str(partial), WRITING)
        try:
            for record in records:
                writer.write(safetensors.numpy.save({name: np.ascontiguousarray(a) for name, a in record.items()}))
        finally:
            writer.close()
        np.save(beside, sizes)
        partial.replace(path)
    except (OSError, RuntimeError) as error:  # the library turns the system's errors into RuntimeError
        for file in (partial, beside):
            file.unlink(missing_ok=True)
        raise DataError(f"{path}: cannot be written ({' '.join(str(error).split())})") from None


def sizes_path(path: Path) -> Path:
    """Where the sizes of a shard's records stand."""
    return path.with_suffix(".npy")


class ShardRecords:
    """The records of several shards by index; safe to read from several threads, and to send to another process.

    Args:
        paths: the shards.
        counts: how many records each must have.

    Raises:
        DataError: a shard that is missing, or does not hold so many records; the message starts with it.
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
        with self._lock:
            if shard not in self._readers:
                if len(self._readers) == OPEN_SHARDS:
                    self._readers.pop(next(iter(self._readers))).close()
                self._readers[shard] = self._open(self.paths[shard])
            try:
                (data,) = self._readers[shard].read([index - int(self._ends[shard]) + self.counts[shard]])
            except (RuntimeError, IndexError) as error:
                raise DataError(f"{self.paths[shard]}: damaged: {' '.join(str(error).split())}") from None
        found: dict[str, np.ndarray] = safetensors.numpy.load(data)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self.paths, "counts": self.counts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def sizes(self) -> np.ndarray:
        """`[records]` sizes, as they were written.

        Raises:
            DataError: a file of them is missing or damaged.
        """
        found = []
        for path, count in zip(self.paths, self.counts, strict=True):
            try:
                found.append(np.load(sizes_path(path), allow_pickle=False))
            except (OSError, ValueError) as error:
                raise DataError(f"{sizes_path(path)}: cannot be read ({' '.join(str(error).split())})") from None
            if len(found[-1]) != count:
                raise DataError(f"{sizes_path(path)}: {len(found[-1]):,} sizes for {count:,} records")
        return np.concatenate([*found, np.zeros(0, np.int32)])

    @staticmethod
    def _open(path: os.PathLike[str]) -> Any:
        from array_record.python.array_record_module import ArrayRecordReader

        try:
            return ArrayRecordReader(str(path), READING)
        except RuntimeError as error:
            raise DataError(f"{path}: cannot be read ({' '.join(str(error).split())})") from None
