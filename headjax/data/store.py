"""Prepared folders: shards of records on disk, which several hosts write together and training reads by index.

`manifest.json` has the settings. A shard is an ArrayRecord file whose records are safetensors files of arrays; beside
it lies one of the numbers of tokens, with the shard's counts. A host that has finished writes `host-I-of-N.json`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from headjax.core.errors import DataError
from headjax.core.serialize import from_data, to_data
from headjax.core.share import Share
from headjax.data.examples import Record, Records
from headjax.data.files import source_of
from headjax.data.forms.form import Form
from headjax.data.forms.images import ImageForm
from headjax.data.forms.preprocessing import Preprocessing
from headjax.data.loading import Reading, Stored, task_data, totals
from headjax.data.registry import TASKS
from headjax.data.rows import SPLITS, Split
from headjax.data.task import TaskData
from headjax.storage.files import beside, first_line, parse_json, remove_leftovers, write_file
from headjax.storage.paths import copy_file, is_bucket
from headjax.tokenizers.tokenizer import SPECIAL_FILE, Tokenizer

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer"
SUFFIX = ".array_record"

READ_AHEAD = 8
"""Threads that read training batches ahead from a bucket, where each example is a request to the service."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """A complete shard: its name, its split, its number of examples, the counts of its rows, and their hash."""

    name: str
    split: str
    examples: int
    counts: Mapping[str, int]
    rows: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What a preparation depends on: the content of `manifest.json`."""

    task: str
    form: Form
    source: str
    tokenizer: str
    shard_bytes: int
    seed: int
    hosts: int
    versions: Mapping[str, str]

    def difference(self, other: Settings) -> str:
        """Return in words the first setting in which others differ, versions apart; empty if none does."""
        before, now = ({**one.pop("form"), **one} for one in (to_data(self), to_data(other)))
        names = (name for name in {**before, **now} if name != "versions" and before.get(name) != now.get(name))
        return next((f"{name} was {before.get(name)!r} and is {now.get(name)!r} now" for name in names), "")


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A prepared folder, whose hosts may not all have finished."""

    folder: Path
    settings: Settings
    shards: tuple[Shard, ...]
    waiting: tuple[int, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Hash of everything that the examples depend on."""
        own = [to_data(self.settings.form), self.settings.tokenizer, self.settings.seed]
        data = [*own, [[shard.name, shard.rows] for shard in self.shards]]
        return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]

    def of(self, split: str) -> list[Shard]:
        """Return the shards of a split."""
        return [shard for shard in self.shards if shard.split == split]

    def counts(self, split: str) -> dict[str, Any]:
        """Return the counts of a split, see `totals`."""
        return totals((shard.examples, shard.counts) for shard in self.of(split))

    def stored(self, split: Split) -> Stored:
        """Return the records of a split on disk."""
        paths = [self.folder / shard.name for shard in self.of(split)]
        sizes = np.concatenate([*map(_sizes, paths), np.zeros(0, np.int32)])
        return Stored(ShardRecords(paths, len(sizes)), sizes, self.counts(split))


def shard_name(split: str, number: int) -> str:
    """Return the name of a shard; of N hosts each has every N-th number."""
    return f"{split}-{number:05d}{SUFFIX}"


def host_file(host: Share) -> str:
    """Return the name of the file that says that a host has finished."""
    return f"host-{host.index}-of-{host.count}.json"


def is_prepared(path: str | Path) -> bool:
    """Return whether a path is a folder of prepared shards, finished or not."""
    return (source_of(path) / MANIFEST).is_file()


def has_tokenizer(folder: Path) -> bool:
    """Return whether a prepared folder has its tokenizer whole; the last file of a tokenizer is `SPECIAL_FILE`."""
    return (folder / TOKENIZER / SPECIAL_FILE).is_file()


def read_settings(folder: Path) -> Settings:
    """Return the settings of a prepared folder."""
    file = folder / MANIFEST
    if not file.is_file():
        raise DataError(f"{folder}: no {MANIFEST}, not a folder that `headjax prepare` wrote")
    return from_data(Settings, parse_json(file.read_bytes(), str(file)), str(file))


def open_prepared(folder: Path) -> Prepared:
    """Return a prepared folder with the shards that its finished hosts list."""
    settings = read_settings(folder)
    hosts = [Share(index, settings.hosts) for index in range(settings.hosts)]
    files = [folder / host_file(host) for host in hosts]
    waiting = tuple(host.index for host, file in zip(hosts, files, strict=True) if not file.is_file())
    listed = [parse_json(file.read_bytes(), str(file)) for file in files if file.is_file()]
    shards = [Shard(**shard) for entries in listed for shard in entries]
    shards.sort(key=lambda shard: (SPLITS.index(shard.split), shard.name))
    return Prepared(folder, settings, tuple(shards), waiting)


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
    found = open_prepared(folder)
    settings, form = found.settings, found.settings.form
    if found.waiting:
        names = ", ".join(map(str, found.waiting))
        raise DataError(f"{folder}: not prepared to the end (host {names}); the same `headjax prepare` continues")
    if task and settings.task != task:
        raise DataError(f"{folder}: holds {settings.task}, not {task}")
    for field, value in wanted.items():
        if value != (there := getattr(form, field, None)):
            raise DataError(f"{folder}: prepared with {field} {there}, config.data asks for {value}")
    own = Tokenizer.load(folder / TOKENIZER) if settings.tokenizer else None
    if own is not None and own.fingerprint != settings.tokenizer:
        raise DataError(f"{folder / TOKENIZER}: not the vocabulary that the shards were written with")
    if tokenizer is not None and own is not None and tokenizer.fingerprint != own.fingerprint:
        raise DataError(
            f"{folder}: prepared with another vocabulary ({own.vocab_size:,} tokens, {own.fingerprint}) than "
            f"the model's ({tokenizer.vocab_size:,} tokens, {tokenizer.fingerprint}); prepare it with --tokenizer"
        )
    info = {"text": str(folder), "task": settings.task, "tokenizer": settings.tokenizer, "data": found.fingerprint}
    metrics = TASKS[settings.task].metrics if settings.task in TASKS else ()
    threads = READ_AHEAD if is_bucket(folder) else 0
    if isinstance(form, ImageForm):
        form = form.preprocessed(by, stored=True)
    splits = {split: found.stored(split) for split in SPLITS}
    held = splits["validation"]
    splits["validation"] = held._replace(records=[held.records[index] for index in range(len(held.records))])
    return task_data(form, own, splits, info, reading._replace(metrics=metrics, threads=threads))


# Shards.


def write_shard(path: Path, shard: Shard, records: Records, sizes: np.ndarray) -> None:
    """Write a shard, which gets its name when it and the file beside it are complete."""
    described = {"shard": json.dumps(dataclasses.asdict(shard))}
    write_file(_beside(path), safetensors.numpy.save({"sizes": sizes.astype(np.int32)}, described))
    # ArrayRecord writes files of this machine alone.
    place: Any = tempfile.TemporaryDirectory(prefix="headjax-") if is_bucket(path) else contextlib.nullcontext("")
    with place as folder:
        partial = Path(folder) / path.name if folder else beside(path, "new")
        try:
            _write_records(partial, records)
            if folder:
                copy_file(partial, path)
            else:
                partial.replace(path)
                remove_leftovers(path)
        except (OSError, RuntimeError) as error:  # the library turns the system's errors into RuntimeError
            reason = getattr(error, "strerror", None) or first_line(error)
            raise DataError(f"{path}: cannot be written ({reason})") from None
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


def _write_records(file: Path, records: Records) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(file), "group_size:1")  # records are read one by one
    try:
        for record in (records[index] for index in range(len(records))):
            writer.write(safetensors.numpy.save({name: np.ascontiguousarray(a) for name, a in record.items()}))
    finally:
        writer.close()


def read_shard(path: Path) -> Shard | None:
    """Return the description of a shard that is complete; None for any other."""
    if not path.is_file():
        return None
    try:
        head = _beside(path).read_bytes()
        metadata = json.loads(head[8 : 8 + int.from_bytes(head[:8], "little")])["__metadata__"]
        return Shard(**json.loads(metadata["shard"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _beside(path: Path) -> Path:
    return path.with_suffix(".safetensors")


def _sizes(path: Path) -> np.ndarray:
    """Return the numbers of tokens `[records]` of a shard's records."""
    try:
        return safetensors.numpy.load(_beside(path).read_bytes())["sizes"]
    except (OSError, KeyError, safetensors.SafetensorError) as error:
        raise DataError(f"{_beside(path)}: cannot be read ({first_line(error)}); prepare again") from None


class ShardRecords:
    """The records of several shards by index, read by Grain. Threads may share it, and it can be pickled."""

    def __init__(self, paths: Sequence[Path], count: int) -> None:
        import grain

        self._folder = str(paths[0].parent) if paths else ""
        missing = next((path for path in paths if not path.is_file()), None)
        if missing is not None:
            raise DataError(f"{missing}: missing; prepare again")
        with self._reading():
            self._source: Any = grain.sources.ArrayRecordDataSource([str(path) for path in paths]) if paths else ()
            if len(self._source) != count:
                raise ValueError(f"its shards hold {len(self._source):,} of {count:,} records")

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
            raise DataError(f"{self._folder}: a shard is damaged ({first_line(error)}); prepare again") from None
