"""Where records are: in memory, or in shards on disk, with the same arrays in both.

A shard is an ArrayRecord file (https://github.com/google/array_record) whose records are safetensors files; a manifest
says what a folder of shards holds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

from headjax.core.errors import DataError, HeadjaxError
from headjax.core.files import write_file
from headjax.core.serialize import dumps, from_data
from headjax.data.examples import Record, Records
from headjax.data.forms.form import Form, Seed
from headjax.data.rows import Rows, RowSource, Split, TaskRow, fingerprint
from headjax.tokenizers.tokenizer import Tokenizer

MANIFEST = "manifest.json"
UNFINISHED = "manifest.partial.json"
TOKENIZER = "tokenizer"
FORMAT = 1

WRITING = "group_size:1"
READING = "readahead_buffer_size:0,max_parallelism:0"
"""Options for records that are read one by one in any order."""

PARTIAL = ".partial"

OPEN_SHARDS = 512
"""Shards that are open at the same time at most; systems often allow a process 1024 open files."""


class Stored(NamedTuple):
    """The records of a split.

    Attributes:
        records: the records.
        sizes: `[records]` their tokens.
        counts: examples and what the form counted, with words and bytes per token where they are known.
    """

    records: Records
    sizes: np.ndarray
    counts: Mapping[str, Any]


class InMemory(NamedTuple):
    """Rows that were encoded into memory.

    Attributes:
        splits: the records of both splits.
        fingerprint: hash of what is trained on, which checkpoints hold.
    """

    splits: Mapping[Split, Stored]
    fingerprint: str


def encode_rows(
    form: Form, rows: Mapping[Split, Sequence[TaskRow]], tokenizer: Tokenizer | None, seed: Seed = (0,)
) -> InMemory:
    """Encodes rows into memory.

    Args:
        form: how rows become records.
        rows: by split.
        tokenizer: of the text.
        seed: of what is drawn at random.

    Raises:
        DataError: a row that cannot be used, or a split whose rows give no record.
    """
    if form.reads_text:
        form.check(tokenizer)
    splits: dict[Split, Stored] = {}
    trained = ""
    for split, some in rows.items():
        encoded = form.encode(tokenizer, some, split, seed)
        if some and not len(encoded.records):
            raise DataError(form.nothing(split, encoded.counts, some[0].place))
        sizes = record_sizes(form, encoded.records)
        splits[split] = Stored(encoded.records, sizes, totals([(len(sizes), encoded.counts)]))
        if split == "train":
            trained = encoded.fingerprint or fingerprint(some)
    return InMemory(splits, trained)


def record_sizes(form: Form, records: Records) -> np.ndarray:
    """Return int32 `[records]` tokens."""
    return np.asarray([form.tokens(records[index]) for index in range(len(records))], np.int32)


def read_when_asked(form: Form, rows: Rows) -> dict[Split, Stored]:
    """Return the records of rows that are read one by one, each encoded whenever it is read (images in their files)."""
    return {
        split: Stored(RowRecords(form, source), np.ones(source.count, np.int64), {"examples": source.count})
        for split, source in rows.items()
    }


@dataclasses.dataclass(frozen=True)
class RowRecords:
    """One record of each row, made when it is read.

    Attributes:
        form: makes it.
        source: reads the rows.
    """

    form: Form
    source: RowSource

    def __len__(self) -> int:
        return self.source.count

    def __getitem__(self, index: int) -> Record:
        return self.form.encode(None, [self.source.at(index)], "train", ()).records[0]


def totals(shards: Iterable[tuple[int, Mapping[str, int]]]) -> dict[str, Any]:
    """Return examples and counts over shards, with words and bytes per token where they are known."""
    total: dict[str, Any] = {"examples": 0}
    for examples, counts in shards:
        total["examples"] += examples
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    for name in ("words", "bytes"):
        if name in total and total.get("tokens"):
            total[f"{name}_per_token"] = total[name] / total["tokens"]
    return total


@dataclasses.dataclass(frozen=True)
class Shard:
    """A shard.

    Attributes:
        name: its file.
        split: `train` or `validation`.
        examples: its records.
        rows: fingerprint of the rows it was made of.
        counts: what its form counted.
    """

    name: str
    split: str
    examples: int
    rows: str
    counts: Mapping[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """A prepared task.

    Attributes:
        task: its name.
        form: how rows became records.
        source: where the rows come from.
        tokenizer: fingerprint of the vocabulary; empty for a task without text.
        shard_bytes: bytes of a shard's rows, about.
        seed: of what was drawn at random.
        versions: of the programs that wrote it.
        shards: the shards in order.
        format: of the folder.
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
        """Hash of all that decides what the examples are."""
        data = [dumps(self.form), self.tokenizer, self.seed, [[shard.name, shard.rows] for shard in self.shards]]
        return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]

    def of(self, split: str) -> list[Shard]:
        """The shards of a split."""
        return [shard for shard in self.shards if shard.split == split]

    def counts(self, split: str) -> dict[str, Any]:
        """Examples and what the form counted, over a split, with words and bytes per token where they are known."""
        return totals((shard.examples, shard.counts) for shard in self.of(split))

    def stored(self, folder: Path) -> dict[Split, Stored]:
        """Return the records of both splits: those to train on are read from disk, the others are in memory.

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
        """Writes it into its folder."""
        write_file(folder / name, dumps(self).encode())


def is_prepared(path: str | Path) -> bool:
    """Whether a path is a folder of prepared shards, finished or not."""
    folder = Path(path).expanduser()
    return (folder / MANIFEST).is_file() or (folder / UNFINISHED).is_file()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a prepared folder.

    Raises:
        DataError: there is none, it is not finished, or it is broken.
    """
    if not (folder / MANIFEST).is_file():
        if (folder / UNFINISHED).is_file():
            raise DataError(f"{folder}: not prepared to the end; the same `headjax prepare` goes on")
        raise DataError(f"{folder}: no {MANIFEST}, so it is no folder that `headjax prepare` wrote")
    return load_manifest(folder / MANIFEST)


def load_manifest(file: Path) -> Manifest:
    """A manifest, finished or not.

    Raises:
        DataError: it is broken, or of a later format.
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data.get("format") != FORMAT:
            raise DataError(f"{file}: format {data.get('format')}, this headjax reads {FORMAT}")
        return from_data(Manifest, data, "manifest")
    except DataError:
        raise
    except (OSError, ValueError, AttributeError, HeadjaxError) as error:
        raise DataError(f"{file}: broken: {' '.join(str(error).split())}") from None


def write_shard(path: Path, records: Records, sizes: np.ndarray) -> None:
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
