"""Prepared folders: shards of records on disk, the manifest that describes them, and the kind of data `task`.

A shard is an ArrayRecord file (https://github.com/google/array_record) whose records are safetensors files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import re
import tempfile
import threading
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from headjax.core.errors import DataError, HeadjaxError, require
from headjax.core.fields import Count, Size
from headjax.core.files import first_line, hidden, leftovers, read_bytes, read_document, write_file
from headjax.core.formats import check_format
from headjax.core.paths import copy_file, is_bucket
from headjax.core.serialize import dumps, from_data, kind
from headjax.data.augmentation import Augmentation
from headjax.data.examples import Record, Records
from headjax.data.files import candidate_folders, missing, source_of
from headjax.data.forms.form import Form
from headjax.data.loading import Reading, Stored, task_data, totals
from headjax.data.rows import Split
from headjax.data.task import DataConfig, TaskData
from headjax.data.tasks import metrics_of
from headjax.tokenizers.tokenizer import SPECIAL_FILE, Tokenizer

MANIFEST = "manifest.json"
UNFINISHED = "manifest.partial.json"
TOKENIZER = "tokenizer"
HOSTS = "hosts"
PART = "part.json"
FORMAT = 1

WRITING = "group_size:1"
READING = "readahead_buffer_size:0,max_parallelism:0"
"""ArrayRecord's options for records that are read one by one in any order."""

SHARD = ".array_record"
"""Suffix of a shard."""

READ_AHEAD = 8
"""Threads that read training batches ahead from a bucket, where each example is a request to the service."""

OPEN_SHARDS = 512
"""Greatest number of shards open at the same time; systems often allow a process 1024 open files."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """Entry of a shard in the manifest.

    Attributes:
        name: file name.
        split: `train` or `validation`.
        examples: number of records.
        rows: fingerprint of the rows that were encoded.
        counts: counts of the form.
    """

    name: str
    split: str
    examples: int
    rows: str
    counts: Mapping[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """Description of a prepared task.

    Attributes:
        task: name of the task.
        form: form that encoded the rows.
        source: origin of the rows.
        tokenizer: fingerprint of the vocabulary; empty for a task without text.
        shard_bytes: approximate size of a shard's rows in bytes.
        seed: seed of the random choices in encoding.
        versions: versions of the programs that wrote the folder.
        shards: the shards in order.
        format: version of the folder's format.
    """

    task: str
    form: Form
    source: str
    tokenizer: str
    shard_bytes: int
    seed: int
    versions: Mapping[str, str]
    shards: tuple[Shard, ...] = ()
    format: int = FORMAT

    @property
    def fingerprint(self) -> str:
        """Hash of everything that the examples depend on."""
        data = [dumps(self.form), self.tokenizer, self.seed, [[shard.name, shard.rows] for shard in self.shards]]
        return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]

    def of(self, split: str) -> list[Shard]:
        """Return the shards of a split."""
        return [shard for shard in self.shards if shard.split == split]

    def counts(self, split: str) -> dict[str, Any]:
        """Return the counts of a split, see `totals`."""
        return totals((shard.examples, shard.counts) for shard in self.of(split))

    def stored(self, folder: Path) -> dict[Split, Stored]:
        """Return the records of both splits: training records are read from disk, the others are in memory.

        Raises:
            DataError: a shard is missing or damaged.
        """
        train, held = (self.records(folder, split) for split in ("train", "validation"))
        in_memory = [held[index] for index in range(len(held))]
        return {
            "train": Stored(train, train.sizes(), self.counts("train")),
            "validation": Stored(in_memory, held.sizes(), self.counts("validation")),
        }

    def records(self, folder: Path, split: str) -> ShardRecords:
        """Return the records of a split, on disk.

        Raises:
            DataError: a shard is missing or damaged.
        """
        shards = self.of(split)
        return ShardRecords([folder / shard.name for shard in shards], [shard.examples for shard in shards])

    def write(self, folder: Path, name: str = MANIFEST) -> None:
        """Write the manifest into its folder."""
        write_file(folder / name, dumps(self).encode())


def is_prepared(path: str | Path) -> bool:
    """Return whether a path is a folder of prepared shards, finished or not."""
    folder = source_of(path)
    return (folder / MANIFEST).is_file() or (folder / UNFINISHED).is_file() or bool(hosts_of(folder))


def hosts_of(folder: Path) -> list[tuple[int, int]]:
    """Return (number, count) of the hosts that have begun to prepare a folder together; none in a finished folder."""
    found = (re.fullmatch(r"(\d+)-of-(\d+)", name) for name in names_in(folder / HOSTS))
    return sorted((int(match[1]), int(match[2])) for match in found if match)


def names_in(folder: Path) -> list[str]:
    """Return the names of a folder's entries; none if the folder is missing, or another host removes it meanwhile."""
    if not folder.is_dir():
        return []
    try:
        return [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        return []


def has_tokenizer(folder: Path) -> bool:
    """Return whether a prepared folder has its tokenizer whole; the last file of a tokenizer is `SPECIAL_FILE`."""
    return (folder / TOKENIZER / SPECIAL_FILE).is_file()


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a prepared folder.

    Raises:
        DataError: the folder has no manifest, is not finished, or is damaged.
    """
    if not (folder / MANIFEST).is_file():
        if (folder / UNFINISHED).is_file():
            raise DataError(f"{folder}: not prepared to the end; the same `headjax prepare` goes on")
        begun = hosts_of(folder)
        if begun:
            raise DataError(f"{folder}: not prepared to the end; {_waiting_for(folder, begun)}")
        raise DataError(f"{folder}: no {MANIFEST}, not a folder that `headjax prepare` wrote")
    return load_manifest(folder / MANIFEST)


def _waiting_for(folder: Path, hosts: Sequence[tuple[int, int]]) -> str:
    """Return in words for which hosts a folder waits."""
    count = hosts[0][1]
    done = {index for index, _ in hosts if (folder / HOSTS / f"{index}-of-{count}" / PART).is_file()}
    rest = [str(index) for index in range(count) if index not in done]
    if not rest:
        return f"all {count} hosts have finished their part: the same `headjax prepare` on any of them ends it"
    return f"of {count} hosts these have not finished: {', '.join(rest)}"


def load_manifest(file: Path) -> Manifest:
    """Return a manifest, finished or not.

    Raises:
        DataError: a damaged file, or one of a later format.
    """
    try:
        data = json.loads(read_document(file))
        check_format(data, FORMAT, file, data.get("versions", {}).get("headjax"), DataError)
        return from_data(Manifest, data, "manifest")
    except DataError:
        raise
    except (OSError, ValueError, AttributeError, RecursionError, HeadjaxError) as error:
        raise DataError(f"{file}: broken: {' '.join(str(error).split())}") from None


def write_shard(path: Path, records: Records, sizes: np.ndarray) -> None:
    """Write a shard and, beside it, its records' sizes (`.npy`). The shard gets its name when both are complete.

    Raises:
        DataError: the shard cannot be written (a full disk); no partial file is left.
    """
    from array_record.python.array_record_module import ArrayRecordWriter

    if is_bucket(path):  # the library writes files of this machine alone
        _upload_shard(path, records, sizes)
        return
    partial = hidden(path, "new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = ArrayRecordWriter(str(partial), WRITING)
        try:
            for record in (records[index] for index in range(len(records))):
                writer.write(safetensors.numpy.save({name: np.ascontiguousarray(a) for name, a in record.items()}))
        finally:
            writer.close()
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        beside = io.BytesIO()
        np.save(beside, sizes)
        write_file(sizes_path(path), beside.getvalue())
        partial.replace(path)
        for entry, _ in leftovers(path):
            entry.unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:  # the library turns the system's errors into RuntimeError
        raise DataError(f"{path}: cannot be written ({' '.join(str(error).split())})") from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def _upload_shard(path: Path, records: Records, sizes: np.ndarray) -> None:
    """Write a shard on this machine, and copy its sizes and then the shard to their bucket.

    Raises:
        DataError: it cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="headjax-") as folder:
        shard = Path(folder) / path.name
        write_shard(shard, records, sizes)
        try:
            copy_file(sizes_path(shard), sizes_path(path))
            copy_file(shard, path)
        except OSError as error:
            raise DataError(f"{path}: cannot be written ({error.strerror})") from None


def sizes_path(path: Path) -> Path:
    """Return the path of the sizes of a shard's records."""
    return path.with_suffix(".npy")


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
            raise DataError(f"{self.paths[shard]}: damaged: {' '.join(str(error).split())}") from None
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

    def sizes(self) -> np.ndarray:
        """Return `[records]` sizes, as they were written.

        Raises:
            DataError: a file of sizes is missing or damaged.
        """
        found = []
        for path, count in zip(self.paths, self.counts, strict=True):
            written = io.BytesIO(read_bytes(sizes_path(path)))
            try:
                sizes = np.load(written, allow_pickle=False)
            except (ValueError, EOFError, MemoryError, zipfile.BadZipFile) as error:
                raise DataError(f"{sizes_path(path)}: cannot be read ({first_line(error)})") from None
            if not isinstance(sizes, np.ndarray) or sizes.ndim != 1 or sizes.dtype.kind not in "iu":
                raise DataError(f"{sizes_path(path)}: not a list of whole numbers")
            if len(sizes) != count:
                raise DataError(f"{sizes_path(path)}: {len(sizes):,} sizes for {count:,} records")
            found.append(sizes)
        return np.concatenate([*found, np.zeros(0, np.int32)])

    @staticmethod
    def _open(path: os.PathLike[str]) -> Any:
        from array_record.python.array_record_module import ArrayRecordReader

        try:
            return ArrayRecordReader(str(path), READING)
        except RuntimeError as error:
            raise DataError(f"{path}: cannot be read ({' '.join(str(error).split())})") from None


@kind("task")
@dataclasses.dataclass(frozen=True, kw_only=True)
class PreparedData(DataConfig):
    """A task that `headjax prepare` wrote. Training examples are read from disk, validation examples are in memory.

    Attributes:
        task: name of the task; empty accepts whatever task the folder holds.
        path: the prepared folder; empty looks for `prepared/TASK` under the folder that HEADJAX_DATA names.
        length: number of tokens of an example; if not 0, the folder must have been prepared with it.
        size: side of an image in pixels; if not 0, the folder must have been prepared with it.
        buckets: lengths to which training batches are padded, besides the longest example's; one compilation each.
        augmentation: random changes of training images; None for the task's usual ones.
        ranges: number of consecutive ranges into which the shards are divided. Each is read for the same rows of every
            batch and shuffled by itself, so that of several processes each reads the shards of its own ranges. It must
            divide the batch size, and the number of processes must divide it. 0 shuffles all examples together.
    """

    task: str = ""
    path: str = ""
    length: Count = 0
    size: Count = 0
    buckets: tuple[Size, ...] = ()
    augmentation: Augmentation | None = None
    ranges: Count = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.task or self.path), "path", "name a prepared folder, or a task to look for")

    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        folder, manifest = self.open()
        own = Tokenizer.load(folder / TOKENIZER) if manifest.tokenizer else None
        if own is not None and own.fingerprint != manifest.tokenizer:
            raise DataError(f"{folder / TOKENIZER}: not the vocabulary that the shards were written with")
        if tokenizer is not None and own is not None and tokenizer.fingerprint != own.fingerprint:
            raise DataError(
                f"{folder}: prepared with another vocabulary ({own.vocab_size:,} tokens, {own.fingerprint}) than "
                f"the model's ({tokenizer.vocab_size:,} tokens, {tokenizer.fingerprint}); prepare it with --tokenizer"
            )
        info = {
            "text": str(folder),
            "task": manifest.task,
            "tokenizer": manifest.tokenizer,
            "data": manifest.fingerprint,
        }
        threads = READ_AHEAD if is_bucket(folder) else 0
        reading = Reading(metrics_of(manifest.task), self.buckets, self.augmentation, self.ranges, threads)
        return task_data(manifest.form, own, manifest.stored(folder), info, reading)

    def open(self) -> tuple[Path, Manifest]:
        """Return the folder and its manifest.

        Raises:
            DataError: no prepared folder is found, or it holds another task or length.
        """
        names = (f"prepared/{self.task}",)
        for folder in candidate_folders(self.path, names):
            if not is_prepared(folder) and not self.path:
                continue
            manifest = read_manifest(folder)
            if self.task and manifest.task != self.task:
                raise DataError(f"{folder}: holds {manifest.task}, not {self.task}")
            for field in ("length", "size"):
                wanted, found = getattr(self, field), getattr(manifest.form, field, 0)
                if wanted and wanted != found:
                    raise DataError(f"{folder}: prepared with {field} {found}, config.data.{field} is {wanted}")
            return folder, manifest
        if self.path:
            raise DataError(f"{self.path}: no such folder")
        raise missing(self.task, self.path, names, f"what `headjax prepare {self.task}` writes")
