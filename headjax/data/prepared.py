"""Prepared folders: shards of records, and the kind of data `task` that reads them.

`manifest.json` has the settings of a preparation. Host I of N that has written all its shards lists them in
`host-I-of-N.json`; a folder is finished when all N are there.
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

from headjax.core.errors import DataError
from headjax.core.serialize import dumps, from_data, to_data
from headjax.data.files import source_of
from headjax.data.forms.form import Form
from headjax.data.forms.images import ImageForm
from headjax.data.forms.preprocessing import Preprocessing
from headjax.data.loading import Reading, Stored, task_data, totals
from headjax.data.registry import TASKS
from headjax.data.rows import SPLITS, Split
from headjax.data.shards import Shard, ShardRecords, read_sizes
from headjax.data.task import TaskData
from headjax.storage.files import parse_json, write_file
from headjax.storage.paths import is_bucket
from headjax.tokenizers.tokenizer import SPECIAL_FILE, Tokenizer

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer"

READ_AHEAD = 8
"""Threads that read training batches ahead from a bucket, where each example is a request to the service."""


@dataclasses.dataclass(frozen=True, order=True)
class Host:
    """One of the hosts that prepare a task together."""

    index: int = 0
    count: int = 1

    def owns(self, number: int) -> bool:
        """Return whether the host writes the shard of a number."""
        return number % self.count == self.index

    @property
    def file(self) -> str:
        """Name of the file that lists the host's shards."""
        return f"host-{self.index}-of-{self.count}.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """Description of a prepared task."""

    task: str
    form: Form
    source: str
    tokenizer: str
    shard_bytes: int
    seed: int
    versions: Mapping[str, str]
    shards: tuple[Shard, ...] = ()

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
        """Return the records of both splits: training records are read from disk, the others are in memory."""
        train, held = (self.records(folder, split) for split in SPLITS)
        in_memory = [held[index] for index in range(len(held))]
        return {
            "train": Stored(train, self.sizes(folder, "train"), self.counts("train")),
            "validation": Stored(in_memory, self.sizes(folder, "validation"), self.counts("validation")),
        }

    def records(self, folder: Path, split: str) -> ShardRecords:
        """Return the records of a split, on disk."""
        return ShardRecords([folder / shard.name for shard in self.of(split)], self.counts(split)["examples"])

    def sizes(self, folder: Path, split: str) -> np.ndarray:
        """Return the numbers of tokens `[records]` of a split."""
        found = [read_sizes(folder / shard.name) for shard in self.of(split)]
        return np.concatenate([*found, np.zeros(0, np.int32)])

    def difference(self, other: Manifest) -> str:
        """Return in words the first setting in which another manifest differs; empty if none does."""
        for field in ("task", "form", "source", "tokenizer", "shard_bytes", "seed"):
            old, new = getattr(self, field), getattr(other, field)
            if old == new:
                continue
            if isinstance(old, str | int) or isinstance(new, str | int):
                return f"{field} was {old!r} and is {new!r} now"
            before, now = to_data(old), to_data(new)
            part = next(name for name in {**before, **now} if before.get(name) != now.get(name))
            return f"{part} was {before.get(part)!r} and is {now.get(part)!r} now"
        return ""

    def write(self, folder: Path) -> None:
        """Write the settings."""
        data = {name: value for name, value in to_data(self).items() if name != "shards"}
        write_file(folder / MANIFEST, (json.dumps(data, indent=2) + "\n").encode())


def read_settings(folder: Path) -> Manifest:
    """Return the manifest of a folder, finished or not, without its shards."""
    file = folder / MANIFEST
    if not file.is_file():
        raise DataError(f"{folder}: no {MANIFEST}, not a folder that `headjax prepare` wrote")
    return from_data(Manifest, parse_json(file.read_bytes(), str(file)), str(file))


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a prepared folder with the shards of all hosts."""
    settings, (shards, waiting) = read_settings(folder), finished_shards(folder)
    if waiting:
        names = ", ".join(map(str, waiting))
        raise DataError(f"{folder}: not prepared to the end (host {names}); the same `headjax prepare` continues")
    return dataclasses.replace(settings, shards=shards)


def finished_shards(folder: Path) -> tuple[tuple[Shard, ...], tuple[int, ...]]:
    """Return the shards of the hosts that have finished, and the numbers of the hosts that have not."""
    hosts = hosts_of(folder)
    listed = {host: parse_json((folder / host.file).read_bytes(), str(folder / host.file)) for host in hosts}
    if len({entry["rows"] for entry in listed.values()}) > 1:
        raise DataError(f"{folder}: its hosts have read different rows; remove its files host-*.json and prepare again")
    shards = [Shard(**shard) for entry in listed.values() for shard in entry["shards"]]
    shards.sort(key=lambda shard: (SPLITS.index(shard.split), shard.name))
    count = max((host.count for host in hosts), default=1)
    return tuple(shards), tuple(sorted({*range(count)} - {host.index for host in hosts}))


def write_host(folder: Path, host: Host, shards: Sequence[Shard], rows: str) -> None:
    """List the shards of a host that has finished; `rows` is the hash of the rows of all hosts."""
    data = {"rows": rows, "shards": [dataclasses.asdict(shard) for shard in shards]}
    write_file(folder / host.file, (json.dumps(data, indent=1) + "\n").encode())


def hosts_of(folder: Path) -> list[Host]:
    """Return the hosts that have finished."""
    found = (re.fullmatch(r"host-(\d+)-of-(\d+)\.json", entry.name) for entry in folder.iterdir())
    return sorted(Host(int(match[1]), int(match[2])) for match in found if match)


def is_prepared(path: str | Path) -> bool:
    """Return whether a path is a folder of prepared shards, finished or not."""
    return (source_of(path) / MANIFEST).is_file()


def has_tokenizer(folder: Path) -> bool:
    """Return whether a prepared folder has its tokenizer whole; the last file of a tokenizer is `SPECIAL_FILE`."""
    return (folder / TOKENIZER / SPECIAL_FILE).is_file()


def load_prepared(
    folder: Path,
    task: str,
    tokenizer: Tokenizer | None,
    wanted: Mapping[str, Any],
    reading: Reading,
    by: Preprocessing | None,
) -> TaskData:
    """Return a prepared task: training examples are read from disk, validation examples are in memory.

    `task` is its name, or empty for any; `wanted` are fields of the form that the folder must have been prepared with.
    Images are preprocessed `by` what a model's files say, at the size of the shards.
    """
    manifest = read_manifest(folder)
    if task and manifest.task != task:
        raise DataError(f"{folder}: holds {manifest.task}, not {task}")
    for field, value in wanted.items():
        found = getattr(manifest.form, field, None)
        if value != found:
            raise DataError(f"{folder}: prepared with {field} {found}, config.data asks for {value}")
    own = Tokenizer.load(folder / TOKENIZER) if manifest.tokenizer else None
    if own is not None and own.fingerprint != manifest.tokenizer:
        raise DataError(f"{folder / TOKENIZER}: not the vocabulary that the shards were written with")
    if tokenizer is not None and own is not None and tokenizer.fingerprint != own.fingerprint:
        raise DataError(
            f"{folder}: prepared with another vocabulary ({own.vocab_size:,} tokens, {own.fingerprint}) than "
            f"the model's ({tokenizer.vocab_size:,} tokens, {tokenizer.fingerprint}); prepare it with --tokenizer"
        )
    info = {"text": str(folder), "task": manifest.task, "tokenizer": manifest.tokenizer, "data": manifest.fingerprint}
    metrics = TASKS[manifest.task].metrics if manifest.task in TASKS else ()
    threads = READ_AHEAD if is_bucket(folder) else 0
    form = manifest.form
    if isinstance(form, ImageForm):
        form = form.preprocessed(by, stored=True)
    return task_data(form, own, manifest.stored(folder), info, reading._replace(metrics=metrics, threads=threads))
