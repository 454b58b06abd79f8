"""Prepared folders: the manifests that describe shards of records, and the kind of data `task` that reads them.

A process writes `manifest.json`. Of N hosts that prepare a folder together host I writes `manifest-I-of-N.json`, and
readers join all N. Until its host has finished, a manifest lists the complete shards and has no hash of all rows.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headjax.core.errors import DataError, HeadjaxError, require
from headjax.core.fields import Count, Size
from headjax.core.serialize import dumps, from_data, kind, to_data
from headjax.data.augmentation import Augmentation
from headjax.data.files import search, source_of
from headjax.data.forms.form import Form
from headjax.data.loading import Reading, Stored, task_data, totals
from headjax.data.rows import SPLITS, Split
from headjax.data.shards import Shard, ShardRecords, read_sizes
from headjax.data.task import DataConfig, TaskData
from headjax.data.tasks import metrics_of
from headjax.storage import integrity
from headjax.storage.files import read_document, write_file
from headjax.storage.formats import check_format
from headjax.storage.paths import is_bucket
from headjax.tokenizers.tokenizer import SPECIAL_FILE, Tokenizer

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer"
FORMAT = 2

SETTINGS = ("task", "form", "source", "tokenizer", "shard_bytes", "seed")
"""Fields of the manifest that must be the same for a preparation to resume."""

MANIFESTS = re.compile(r"manifest(?:-(\d+)-of-(\d+))?\.json")
"""Names of manifests: number of the host, and number of hosts."""

READ_AHEAD = 8
"""Threads that read training batches ahead from a bucket, where each example is a request to the service."""


@dataclasses.dataclass(frozen=True, order=True)
class Host:
    """One of the hosts that prepare a task together.

    Attributes:
        index: its number, from 0.
        count: number of hosts.
    """

    index: int = 0
    count: int = 1

    def owns(self, number: int) -> bool:
        """Return whether the host encodes the shard of a number."""
        return number % self.count == self.index

    @property
    def manifest(self) -> str:
        """Name of the host's manifest."""
        return MANIFEST if self.count == 1 else f"manifest-{self.index}-of-{self.count}.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """Description of a prepared task, or of one host's part of it.

    Attributes:
        task: name of the task.
        form: form that encoded the rows.
        source: origin of the rows.
        tokenizer: fingerprint of the vocabulary; empty for a task without text.
        shard_bytes: approximate size of a shard's rows in bytes.
        seed: seed of the random choices in encoding.
        versions: versions of the programs that wrote the folder.
        shards: the shards in order.
        rows: hash of the rows of all shards, also of other hosts'; empty while the host is at work.
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
    rows: str = ""
    format: int = FORMAT

    def __post_init__(self) -> None:
        names = [shard.name for shard in self.shards]
        require(len(set(names)) == len(names), "shards", "name a shard twice")

    @property
    def fingerprint(self) -> str:
        """Hash of everything that the examples depend on."""
        data = [dumps(self.form), self.tokenizer, self.seed, [[shard.name, shard.rows] for shard in self.shards]]
        return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]

    @property
    def is_finished(self) -> bool:
        """Whether the host has finished; those of earlier versions had another name before."""
        return bool(self.rows) or self.format < FORMAT

    @property
    def has_checksums(self) -> bool:
        """Whether all shards have checksums, as all but those of earlier versions."""
        return all(shard.crc32 for shard in self.shards)

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
        train, held = (self.records(folder, split) for split in SPLITS)
        in_memory = [held[index] for index in range(len(held))]
        return {
            "train": Stored(train, self.sizes(folder, "train"), self.counts("train")),
            "validation": Stored(in_memory, self.sizes(folder, "validation"), self.counts("validation")),
        }

    def records(self, folder: Path, split: str) -> ShardRecords:
        """Return the records of a split, on disk.

        Raises:
            DataError: a shard is missing or damaged.
        """
        shards = self.of(split)
        return ShardRecords([folder / shard.name for shard in shards], [shard.examples for shard in shards])

    def sizes(self, folder: Path, split: str) -> np.ndarray:
        """Return the numbers of tokens `[records]` of a split.

        Raises:
            DataError: a file of sizes is missing or damaged.
        """
        found = [read_sizes(folder / shard.name, shard, self.form.limit) for shard in self.of(split)]
        return np.concatenate([*found, np.zeros(0, np.int32)])

    def difference(self, other: Manifest, fields: Sequence[str] = SETTINGS) -> str:
        """Return in words the first setting in which another manifest differs; empty if none does."""
        for field in fields:
            old, new = getattr(self, field), getattr(other, field)
            if old == new:
                continue
            if isinstance(old, str | int) or isinstance(new, str | int):
                return f"{field} was {old!r} and is {new!r} now"
            before, now = to_data(old), to_data(new)
            part = next(name for name in {**before, **now} if before.get(name) != now.get(name))
            return f"{part} was {before.get(part)!r} and is {now.get(part)!r} now"
        return ""

    def write(self, file: Path) -> None:
        """Write the manifest with its checksum."""
        data = to_data(self)
        write_file(file, (json.dumps({**data, "crc32": _checksum(data)}, indent=2) + "\n").encode())


def _checksum(data: Any) -> str:
    return integrity.sum_of(json.dumps(data, sort_keys=True).encode())


def load_manifest(file: Path) -> Manifest:
    """Return a manifest, finished or not.

    Raises:
        DataError: a damaged file, or one of a later format; the message starts with it.
    """
    try:
        data = json.loads(read_document(file))
        check_format(data, FORMAT, file, data.get("versions", {}).get("headjax"), DataError)
        said = data.pop("crc32", None)
        if said != (_checksum(data) if data.get("format", 0) >= FORMAT else None):
            raise DataError(f"{file}: damaged: differs from its checksum")
        return from_data(Manifest, data, "manifest")
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        if isinstance(error, HeadjaxError) and str(error).startswith(f"{file}: "):
            raise
        raise DataError(f"{file}: broken: {' '.join(str(error).split())}") from None


def is_prepared(path: str | Path) -> bool:
    """Return whether a path is a folder of prepared shards, finished or not."""
    return bool(hosts_of(source_of(path)))


def has_tokenizer(folder: Path) -> bool:
    """Return whether a prepared folder has its tokenizer whole; the last file of a tokenizer is `SPECIAL_FILE`."""
    return (folder / TOKENIZER / SPECIAL_FILE).is_file()


def hosts_of(folder: Path) -> list[Host]:
    """Return the hosts whose manifests a folder holds, whether they have finished or not."""
    found = filter(None, map(MANIFESTS.fullmatch, names_in(folder)))
    return sorted(Host() if match[1] is None else Host(int(match[1]), int(match[2])) for match in found)


def names_in(folder: Path) -> list[str]:
    """Return the names of a folder's entries; none of a folder that is not there."""
    return [entry.name for entry in folder.iterdir()] if folder.is_dir() else []


def manifests_in(folder: Path) -> dict[Host, Manifest]:
    """Return the manifests of a folder, finished or not, by host.

    Raises:
        DataError: one is damaged.
    """
    return {host: load_manifest(folder / host.manifest) for host in hosts_of(folder)}


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a prepared folder, joined from those of all hosts.

    Raises:
        DataError: the folder has no manifest, is not finished, is damaged, or hosts have read different rows.
    """
    parts = manifests_in(folder)
    if not parts:
        raise DataError(f"{folder}: no {MANIFEST}, not a folder that `headjax prepare` wrote")
    whole, waiting = joined(folder, parts)
    if waiting == (0,) and Host() in parts:
        raise DataError(f"{folder}: not prepared to the end; the same `headjax prepare` continues")
    if waiting:
        names = ", ".join(map(str, waiting))
        raise DataError(f"{folder}: not prepared to the end; hosts that have not finished, or read other rows: {names}")
    return whole


def joined(folder: Path, parts: Mapping[Host, Manifest], rows: str = "") -> tuple[Manifest, tuple[int, ...]]:
    """Return the manifest of all shards of the hosts that have finished, and the numbers of those that have not.

    Args:
        folder: the prepared folder.
        parts: its manifests.
        rows: hash of the rows; a host that has finished with others counts as one that has not. Empty takes those of
            the first that has finished.

    Raises:
        DataError: manifests of hosts with different settings or numbers of hosts.
    """
    counts = {host.count for host in parts}
    finished = {host: part for host, part in parts.items() if part.is_finished}
    whole = next(iter((finished or parts).values()))
    for host, part in finished.items():
        difference = whole.difference(part, (*SETTINGS, "versions"))
        if difference or len(counts) > 1:
            difference = difference or f"hosts are {' and '.join(map(str, sorted(counts)))} in number"
            raise DataError(f"{folder / host.manifest}: another preparation, {difference}; choose another folder")
    agreed = {host.index: part for host, part in finished.items() if part.rows == (rows or whole.rows)}
    shards = [shard for part in agreed.values() for shard in part.shards]
    shards.sort(key=lambda shard: (SPLITS.index(shard.split), shard.number))
    waiting = tuple(index for index in range(min(counts)) if index not in agreed)
    return dataclasses.replace(whole, shards=tuple(shards)), waiting


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
        threads = READ_AHEAD if is_bucket(folder) else 0
        reading = Reading(metrics_of(manifest.task), self.buckets, self.augmentation, threads)
        return task_data(manifest.form, own, manifest.stored(folder), info, reading)

    def open(self) -> tuple[Path, Manifest]:
        """Return the folder and its manifest.

        Raises:
            DataError: no prepared folder is found, or it holds another task or length.
        """
        folder = source_of(self.path) if self.path else self._search()
        manifest = read_manifest(folder)
        if self.task and manifest.task != self.task:
            raise DataError(f"{folder}: holds {manifest.task}, not {self.task}")
        for field in ("length", "size"):
            wanted, found = getattr(self, field), getattr(manifest.form, field, 0)
            if wanted and wanted != found:
                raise DataError(f"{folder}: prepared with {field} {found}, config.data.{field} is {wanted}")
        return folder, manifest

    def _search(self) -> Path:
        wanted = f"what `headjax prepare {self.task}` writes"
        names = (f"prepared/{self.task}",)
        return search(self.task, "", names, lambda folder: folder if is_prepared(folder) else None, wanted)
