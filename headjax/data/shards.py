"""Shards: records on disk, read by index.

A shard is an ArrayRecord file (https://github.com/google/array_record) whose records are safetensors files. Beside it
lies a safetensors file with its records' numbers of tokens, and its `Shard` as metadata.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from headjax.core.errors import DataError
from headjax.data.examples import Record, Records
from headjax.storage.files import beside, first_line, remove_leftovers, write_file
from headjax.storage.paths import copy_file, is_bucket

SUFFIX = ".array_record"


@dataclasses.dataclass(frozen=True)
class Shard:
    """Description of a shard."""

    name: str
    split: str
    examples: int
    rows: str
    counts: Mapping[str, int]


def shard_name(split: str, number: int) -> str:
    """Return the name of a shard; names sort in the order of the records."""
    return f"{split}-{number:05d}{SUFFIX}"


def write_shard(path: Path, shard: Shard, records: Records, sizes: np.ndarray) -> None:
    """Write a shard, which gets its name when it and the file beside it are complete."""
    described = {"shard": json.dumps(dataclasses.asdict(shard))}
    write_file(_sizes_of(path), safetensors.numpy.save({"sizes": sizes.astype(np.int32)}, described))
    with _writing(path), tempfile.TemporaryDirectory(prefix="headjax-") if is_bucket(path) else _nowhere() as folder:
        # ArrayRecord writes files of this machine alone.
        partial = Path(folder) / path.name if folder else beside(path, "new")
        try:
            _write_records(partial, records)
            if folder:
                copy_file(partial, path)
            else:
                partial.replace(path)
                remove_leftovers(path)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


def _nowhere() -> contextlib.AbstractContextManager[str]:
    return contextlib.nullcontext("")


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # the library turns the system's errors into RuntimeError
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise DataError(f"{path}: cannot be written ({reason})") from None


def _write_records(file: Path, records: Records) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(file), "group_size:1")  # records are read one by one
    try:
        for record in (records[index] for index in range(len(records))):
            writer.write(safetensors.numpy.save({name: np.ascontiguousarray(a) for name, a in record.items()}))
    finally:
        writer.close()


def _sizes_of(path: Path) -> Path:
    """Return the file with the numbers of tokens of a shard's records."""
    return path.with_suffix(".safetensors")


def read_shard(path: Path) -> Shard | None:
    """Return the description of a shard that is complete; None for any other."""
    if not path.is_file():
        return None
    try:
        head = _sizes_of(path).read_bytes()
        metadata = json.loads(head[8 : 8 + int.from_bytes(head[:8], "little")])["__metadata__"]
        return Shard(**json.loads(metadata["shard"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_sizes(path: Path) -> np.ndarray:
    """Return the numbers of tokens `[records]` of a shard's records."""
    file = _sizes_of(path)
    try:
        return safetensors.numpy.load(file.read_bytes())["sizes"]
    except (OSError, KeyError, safetensors.SafetensorError) as error:
        raise DataError(f"{file}: cannot be read ({first_line(error)}); remove it and prepare again") from None


class ShardRecords:
    """The records of several shards by index, read by Grain. Threads may share it, and it can be pickled."""

    def __init__(self, paths: Sequence[Path], count: int) -> None:
        import grain

        self._paths = [str(path) for path in paths]
        missing = next((path for path in paths if not path.is_file()), None)
        if missing is not None:
            raise DataError(f"{missing}: missing; prepare again")
        with self._reading():
            self._source: Any = grain.sources.ArrayRecordDataSource(self._paths) if paths else ()
            found = len(self._source)
        if found != count:
            raise DataError(f"{paths[0].parent}: damaged: its shards hold {found:,} of {count:,} records")

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Record:
        with self._reading():
            found: dict[str, np.ndarray] = safetensors.numpy.load(self._source[index])
        return found

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ValueError, safetensors.SafetensorError) as error:
            folder = self._paths[0].rpartition("/")[0]
            raise DataError(f"{folder}: a shard is damaged ({first_line(error)}); prepare again") from None
