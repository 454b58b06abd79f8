"""Records in memory, or in a prepared folder: shards that several hosts write together and training reads by index.

`manifest.json` has the settings. A shard is an ArrayRecord file whose records are safetensors files of arrays; beside
it lies a JSON file with its numbers of tokens and its counts. A host that has finished lists its shards in
`host-I-of-N.json`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import safetensors.numpy

from headjax.core.errors import DataError
from headjax.core.serialize import from_data, to_data
from headjax.core.share import Share
from headjax.data.examples import ExampleSource, Mapped, Records, TaskData, each
from headjax.data.forms.form import MISSING, Form, Seed
from headjax.data.forms.images import ImageForm
from headjax.data.registry import TASKS
from headjax.data.rows import SPLITS, Row, Split, fingerprint
from headjax.storage.files import first_line, parse_json, write_file
from headjax.storage.hub import source_of
from headjax.storage.paths import copy_file, is_bucket
from headjax.tokenizers.tokenizer import SPECIAL_FILE, Tokenizer

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer"

READ_AHEAD = 8
"""Threads that read training batches ahead from a bucket, where each example is a request to the service."""


# In memory.


class Stored(NamedTuple):
    """The records of a split, in memory or on disk, with their numbers of tokens."""

    records: Records
    sizes: np.ndarray
    counts: Mapping[str, Any]


def load_rows(
    form: Form,
    rows: Mapping[Split, Sequence[Row]],
    tokenizer: Tokenizer | None,
    info: Mapping[str, Any],
    metrics: Sequence[str] = (),
    seed: Seed = (0,),
) -> TaskData:
    """Encode rows in memory and return them as a task's data."""
    known = checked(form, tokenizer)
    splits: dict[Split, Stored] = {}
    label = ""
    for split, some in rows.items():
        records, counts = form.encode(known, some, split, seed)
        if some and not len(records):
            raise DataError(form.nothing(split, counts, some[0].place))
        splits[split] = Stored(records, record_sizes(form, records), totals([(len(records), counts)]))
        label = next((row.columns["label"] for row in some if "label" in row.columns), label)
    data = data_hash(form, tokenizer, seed, fingerprint(rows.get("train", ())))
    return task_data(form, tokenizer, splits, {"data": data, **info}, metrics, label=label)


def checked(form: Form, tokenizer: Tokenizer | None) -> Tokenizer:
    """Return the tokenizer if it suits a form; None for a form without text."""
    if form.reads_text:
        if tokenizer is None:
            raise DataError("tokenizer: text needs one")
        form.check(tokenizer)
    return cast(Tokenizer, tokenizer)


def data_hash(form: Form, tokenizer: Tokenizer | None, seed: Any, rows: Any) -> str:
    """Return the hash of everything that examples depend on, which checkpoints hold."""
    parts = [to_data(form), tokenizer.fingerprint if tokenizer else "", seed, rows]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def task_data(
    form: Form,
    tokenizer: Tokenizer | None,
    splits: Mapping[Split, Stored],
    info: Mapping[str, Any],
    metrics: Sequence[str] = (),
    threads: int = 0,
    label: str = "",
) -> TaskData:
    """Return records, wherever they are stored, as a task's data; `label` is the column of the labels of a table."""
    missing = {split: stored.counts[MISSING] for split, stored in splits.items() if MISSING in stored.counts}
    if missing:
        some = (f"{count:,} of {count + len(splits[split].records):,} in {split}" for split, count in missing.items())
        where = f" in the column {label}" if label else ""
        text = f"rows without a label{where} (blank, null, - or -1) are left out, {', '.join(some)}"
        warnings.warn(f"{info.get('text', info.get('task', ''))}: {text}", UserWarning, stacklevel=2)
    known = cast(Tokenizer, tokenizer)
    sources: dict[Split, ExampleSource] = {
        split: form.examples(known, stored.records, stored.sizes, split) if len(stored.records) else ()
        for split, stored in splits.items()
    }
    described: dict[str, Any] = {**info, **{split: dict(stored.counts) for split, stored in splits.items()}}
    described |= {"tokenizer": tokenizer.fingerprint} if tokenizer is not None else {}
    described |= {"labels": [*form.label_names]} if form.label_names else {}
    if protocol := form.protocol(known, splits["validation"].counts):
        described["protocol"] = protocol
    validation = sources["validation"]
    measured = form.measured(metrics, splits["validation"].counts, validation)
    return TaskData(tokenizer, sources.get("train", ()), validation, described, measured, threads)


def record_sizes(form: Form, records: Records) -> np.ndarray:
    """Return the numbers of tokens, int32 `[records]`."""
    return np.asarray([form.tokens(record) for record in each(records)], np.int32)


def totals(parts: Iterable[tuple[int, Mapping[str, int]]]) -> dict[str, Any]:
    """Return the sums of examples and counts, with words and bytes per token where they are known."""
    total: dict[str, Any] = {"examples": 0}
    for examples, counts in parts:
        for name, count in {"examples": examples, **counts}.items():
            total[name] = total.get(name, 0) + count
    for name in ("words", "bytes"):
        if name in total and total.get("tokens"):
            total[f"{name}_per_token"] = total[name] / total["tokens"]
    return total


# On disk.


class Shard(NamedTuple):
    """A shard: its file, its split, the counts and the hash of its rows, and the tokens of its records, `[records]`."""

    name: str
    split: Split
    counts: Mapping[str, int]
    rows: str
    sizes: np.ndarray


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a preparation, stored as `manifest.json`."""

    task: str
    form: Form
    source: str
    tokenizer: str
    shard_bytes: int
    seed: int
    hosts: int


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
        return totals((len(shard.sizes), shard.counts) for shard in self.of(split))

    def stored(self, split: Split) -> Stored:
        """Return the records of a split on disk, read by Grain; threads may share them, and they can be pickled."""
        import grain

        paths = [str(self.folder / shard.name) for shard in self.of(split)]
        sizes = np.concatenate([np.zeros(0, np.int32), *(shard.sizes for shard in self.of(split))])
        with _reading(self.folder):
            source: Any = grain.sources.ArrayRecordDataSource(paths) if paths else ()
            if len(source) != len(sizes):
                raise ValueError(f"its shards hold {len(source):,} of {len(sizes):,} records")
        return Stored(ShardRecords(source, safetensors.numpy.load, self.folder), sizes, self.counts(split))


@dataclasses.dataclass(frozen=True)
class ShardRecords(Mapped):
    """Records on disk, read when they are asked for."""

    folder: Path

    def __getitem__(self, index: int) -> Mapping[str, np.ndarray]:
        with _reading(self.folder):
            return super().__getitem__(index)


@contextlib.contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Turn the libraries' errors of shards that are not as they were written into a `DataError`."""
    try:
        yield
    except (RuntimeError, ValueError, safetensors.SafetensorError) as error:
        raise DataError(f"{folder}: a shard is damaged ({first_line(error)}); prepare again") from None


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
    names = [name for file in files if file.is_file() for name in parse_json(file.read_bytes(), str(file))]
    shards = {name: read_shard(folder / name) for name in sorted(names)}
    missing = next((name for name, shard in shards.items() if shard is None), None)
    if missing is not None:
        raise DataError(f"{folder / missing}: missing or damaged; prepare again")
    return Prepared(folder, settings, tuple(shard for shard in shards.values() if shard is not None), waiting)


def load_prepared(
    folder: Path, task: str, tokenizer: Tokenizer | None, fields: Mapping[str, Any], by: Mapping[str, Any]
) -> TaskData:
    """Return a prepared task: training examples are read from disk, validation examples are in memory.

    `task` is its name, or empty for any; `wanted` are fields of the form that the folder must have been prepared with.
    Images are preprocessed `by` what a model's files say, at the size of the shards.
    """
    prepared = open_prepared(folder)
    settings, form = prepared.settings, prepared.settings.form
    if prepared.waiting:
        names = ", ".join(map(str, prepared.waiting))
        raise DataError(f"{folder}: not prepared to the end (host {names}); the same `headjax prepare` continues")
    if task and settings.task != task:
        raise DataError(f"{folder}: holds {settings.task}, not {task}")
    for field, value in fields.items():
        if value != (stored := getattr(form, field, None)):
            raise DataError(f"{folder}: prepared with {field} {stored}, config.data asks for {value}")
    stored_tokenizer = Tokenizer.load(folder / TOKENIZER) if settings.tokenizer else None
    for other in (settings.tokenizer, tokenizer.fingerprint if tokenizer else settings.tokenizer):
        if stored_tokenizer is not None and stored_tokenizer.fingerprint != other:
            raise DataError(
                f"{folder}: the vocabulary is {stored_tokenizer.fingerprint}, not {other}; prepare it with --tokenizer"
            )
    data = data_hash(form, stored_tokenizer, settings.seed, [[shard.name, shard.rows] for shard in prepared.shards])
    info = {"text": str(folder), "task": settings.task, "data": data}
    metrics = TASKS[settings.task].metrics if settings.task in TASKS else ()
    if isinstance(form, ImageForm):
        form = form.preprocessed(by, stored=True)
    train, validation = (prepared.stored(split) for split in SPLITS)
    validation = validation._replace(records=[*each(validation.records)])
    threads = READ_AHEAD if is_bucket(folder) else 0
    return task_data(form, stored_tokenizer, {"train": train, "validation": validation}, info, metrics, threads)


def write_shard(folder: Path, shard: Shard, records: Records) -> None:
    """Write a shard, which gets its name when it and the file beside it are complete."""
    path = folder / shard.name
    described = {**shard._asdict(), "sizes": shard.sizes.tolist()}
    with tempfile.TemporaryDirectory() as temporary:
        # ArrayRecord writes files of this machine alone. What a killed process leaves is written over.
        partial = Path(temporary, path.name) if is_bucket(path) else path.with_name(f".{path.name}")
        try:
            path.unlink(missing_ok=True)  # one of other rows, which the file beside it would describe wrongly
            write_file(path.with_suffix(".json"), json.dumps(described, default=int).encode())
            _write_records(partial, records)
            if is_bucket(path):
                copy_file(partial, path)
            else:
                partial.replace(path)
        except (OSError, RuntimeError) as error:  # the library turns the system's errors into RuntimeError
            reason = getattr(error, "strerror", None) or first_line(error)
            raise DataError(f"{path}: cannot be written ({reason})") from None
        finally:
            partial.unlink(missing_ok=True)


def _write_records(file: Path, records: Records) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(file), "group_size:1")  # records are read one by one
    try:
        for record in each(records):
            writer.write(safetensors.numpy.save({name: np.ascontiguousarray(a) for name, a in record.items()}))
    finally:
        writer.close()


def read_shard(path: Path) -> Shard | None:
    """Return the description of a shard that is complete, by the file beside it; None for any other."""
    file = path.with_suffix(".json")
    try:
        data = parse_json(file.read_bytes(), str(file)) if path.is_file() else None
    except (OSError, DataError):
        return None
    return data and Shard(**{**data, "sizes": np.asarray(data["sizes"], np.int32)})
