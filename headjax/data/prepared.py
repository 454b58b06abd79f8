"""Prepared folders: shards of records on disk, the manifest that describes them, and the kind of data `task`.

A shard is an ArrayRecord file (https://github.com/google/array_record) whose records are safetensors files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from headjax.core.errors import DataError, HeadjaxError, require
from headjax.core.fields import Count, Size
from headjax.core.files import write_file
from headjax.core.formats import check_format
from headjax.core.paths import copy_file, is_bucket, path_of
from headjax.core.serialize import dumps, from_data, kind
from headjax.data.augmentation import Augmentation
from headjax.data.examples import Record, Records
from headjax.data.files import candidate_folders, missing
from headjax.data.forms.form import Form
from headjax.data.loading import Reading, Stored, task_data, totals
from headjax.data.rows import Split
from headjax.data.task import DataConfig, TaskData
from headjax.data.tasks import metrics_of
from headjax.tokenizers.tokenizer import Tokenizer

MANIFEST = "manifest.json"
UNFINISHED = "manifest.partial.json"
TOKENIZER = "tokenizer"
FORMAT = 1

WRITING = "group_size:1"
READING = "readahead_buffer_size:0,max_parallelism:0"
"""ArrayRecord's options for records that are read one by one in any order."""

PARTIAL = ".partial"

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
    folder = path_of(path).expanduser()
    return (folder / MANIFEST).is_file() or (folder / UNFINISHED).is_file()


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a prepared folder.

    Raises:
        DataError: the folder has no manifest, is not finished, or is damaged.
    """
    if not (folder / MANIFEST).is_file():
        if (folder / UNFINISHED).is_file():
            raise DataError(f"{folder}: not prepared to the end; the same `headjax prepare` goes on")
        raise DataError(f"{folder}: no {MANIFEST}, not a folder that `headjax prepare` wrote")
    return load_manifest(folder / MANIFEST)


def load_manifest(file: Path) -> Manifest:
    """Return a manifest, finished or not.

    Raises:
        DataError: a damaged file, or one of a later format.
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
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
    partial, beside = path.with_name(path.name + PARTIAL), sizes_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = ArrayRecordWriter(str(partial), WRITING)
        try:
            for record in (records[index] for index in range(len(records))):
                writer.write(safetensors.numpy.save({name: np.ascontiguousarray(a) for name, a in record.items()}))
        finally:
            writer.close()
        np.save(beside, sizes)
        partial.replace(path)
    except (OSError, RuntimeError) as error:  # the library turns the system's errors into RuntimeError
        for file in (partial, beside):
            file.unlink(missing_ok=True)
        raise DataError(f"{path}: cannot be written ({' '.join(str(error).split())})") from None


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
        """Return `[records]` sizes, as they were written.

        Raises:
            DataError: a file of sizes is missing or damaged.
        """
        found = []
        for path, count in zip(self.paths, self.counts, strict=True):
            try:
                found.append(np.load(io.BytesIO(sizes_path(path).read_bytes()), allow_pickle=False))
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
    """

    task: str = ""
    path: str = ""
    length: Count = 0
    size: Count = 0
    buckets: tuple[Size, ...] = ()
    augmentation: Augmentation | None = None

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
        reading = Reading(metrics_of(manifest.task), self.buckets, self.augmentation)
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
