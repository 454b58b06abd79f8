"""Prepared folders: shards of records on disk, which several hosts write together and training reads by index.

`manifest.json` has the settings. A shard is an ArrayRecord file whose records are safetensors files of arrays; beside
it lies a JSON file with its numbers of tokens and its counts. A host that has finished writes `host-I-of-N.json`.
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
from headjax.core.serialize import from_data, to_data
from headjax.core.share import Share
from headjax.data.examples import Record, Records
from headjax.data.forms.form import Form
from headjax.data.forms.images import ImageForm
from headjax.data.loading import Stored, data_hash, task_data, totals
from headjax.data.registry import TASKS
from headjax.data.rows import SPLITS, Split
from headjax.data.task import TaskData
from headjax.storage.files import beside, first_line, parse_json, remove_leftovers, write_file
from headjax.storage.hub import source_of
from headjax.storage.paths import copy_file, is_bucket
from headjax.tokenizers.tokenizer import SPECIAL_FILE, Tokenizer

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer"

READ_AHEAD = 8
"""Threads that read training batches ahead from a bucket, where each example is a request to the service."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """A shard: its file, its split, its number of examples, the counts of its rows, and their hash."""

    name: str
    split: Split
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

    def difference(self, other: Settings) -> str:
        """Return in words the first setting in which others differ; empty if none does."""
        before, now = ({**one.pop("form"), **one} for one in (to_data(self), to_data(other)))
        names = (name for name in {**before, **now} if before.get(name) != now.get(name))
        return next((f"{name} was {before.get(name)!r} and is {now.get(name)!r} now" for name in names), "")


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A prepared folder, whose hosts may not all have finished."""

    folder: Path
    settings: Settings
    shards: tuple[Shard, ...]
    waiting: tuple[int, ...] = ()

    def of(self, split: str) -> list[Shard]:
        """Return the shards of a split."""
        return [shard for shard in self.shards if shard.split == split]

    def counts(self, split: str) -> dict[str, Any]:
        """Return the counts of a split, see `totals`."""
        return totals((shard.examples, shard.counts) for shard in self.of(split))

    def stored(self, split: Split) -> Stored:
        """Return the records of a split on disk."""
        paths = [self.folder / shard.name for shard in self.of(split)]
        sizes = np.asarray([size for path in paths for size in _described(path)["sizes"]], np.int32)
        return Stored(ShardRecords(paths, len(sizes)), sizes, self.counts(split))


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
    files = [folder / host_file(Share(index, settings.hosts)) for index in range(settings.hosts)]
    waiting = tuple(index for index, file in enumerate(files) if not file.is_file())
    listed = [parse_json(file.read_bytes(), str(file)) for file in files if file.is_file()]
    shards = sorted((Shard(**shard) for entries in listed for shard in entries), key=lambda shard: shard.name)
    return Prepared(folder, settings, tuple(shards), waiting)


def load_prepared(
    folder: Path,
    task: str,
    tokenizer: Tokenizer | None,
    wanted: Mapping[str, Any],
    by: Mapping[str, Any],
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
    data = data_hash(form, own, settings.seed, [[shard.name, shard.rows] for shard in found.shards])
    info = {"text": str(folder), "task": settings.task, "data": data}
    metrics = TASKS[settings.task].metrics if settings.task in TASKS else ()
    if isinstance(form, ImageForm):
        form = form.preprocessed(by, stored=True)
    train, held = (found.stored(split) for split in SPLITS)
    held = held._replace(records=[held.records[index] for index in range(len(held.records))])
    threads = READ_AHEAD if is_bucket(folder) else 0
    return task_data(form, own, {"train": train, "validation": held}, info, metrics, threads)


# Shards.


def write_shard(folder: Path, shard: Shard, records: Records, sizes: np.ndarray) -> None:
    """Write a shard, which gets its name when it and the file beside it are complete."""
    path = folder / shard.name
    described = {"shard": dataclasses.asdict(shard), "sizes": sizes.tolist()}
    # ArrayRecord writes files of this machine alone.
    place: Any = tempfile.TemporaryDirectory(prefix="headjax-") if is_bucket(path) else contextlib.nullcontext("")
    with place as temporary:
        partial = Path(temporary) / path.name if temporary else beside(path, "new")
        try:
            path.unlink(missing_ok=True)  # one of other rows, which the file beside it would describe wrongly
            write_file(path.with_suffix(".json"), json.dumps(described).encode())
            _write_records(partial, records)
            if temporary:
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
    try:
        return Shard(**_described(path)["shard"]) if path.is_file() else None
    except DataError:
        return None


def _described(path: Path) -> dict[str, Any]:
    """Return what the file beside a shard says of it."""
    file = path.with_suffix(".json")
    try:
        found: dict[str, Any] = parse_json(file.read_bytes(), str(file))
    except (OSError, DataError) as error:
        raise DataError(f"{file}: cannot be read ({first_line(error)}); prepare again") from None
    return found


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
