"""Prepared folders: shards of records that several hosts write together and training reads by index.

`manifest.json` has the settings. A shard is an ArrayRecord file whose records are safetensors files of arrays; beside
it lies a JSON file with its numbers of tokens and its counts. A shard gets its name when it is complete, so the folder
itself says what is left to do. A host that has finished lists its shards in `host-I-of-N.json`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

from headjax.core.errors import DataError, require
from headjax.core.programs import Share
from headjax.core.progress import Progress, Update, silent
from headjax.core.serialize import dumps, from_data, to_data
from headjax.data.examples import Mapped, Records, TaskData, each
from headjax.data.forms.form import Form, Stored, checked, data_hash, record_sizes, task_data, totals
from headjax.data.forms.images import ImageForm
from headjax.data.registry import TASKS
from headjax.data.rows import SPLITS, Rows, RowSource, Split, chunks, fingerprint
from headjax.storage.directories import hold
from headjax.storage.files import first_line, parse_json, write_file, writing
from headjax.storage.paths import copy_file, is_bucket, path_of, source_of
from headjax.tokenizers.tokenizer import SPECIAL_FILE, Tokenizer

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer"

READ_AHEAD = 8  # threads that read training batches ahead from a bucket, where each example is a request to the service
SHARD_BYTES = 2**25  # default size of the rows of one shard in bytes, approximately


class Shard(NamedTuple):
    """A shard: its file, its split, the counts and the hash of its rows, and the tokens of its records, `[records]`."""

    name: str
    split: Split
    counts: Mapping[str, int]
    rows: str
    sizes: np.ndarray


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a preparation, stored as `manifest.json`.

    Attributes:
        tokenizer: fingerprint of the tokenizer.
    """

    task: str
    form: Form
    source: str
    tokenizer: str
    shard_bytes: int
    seed: int
    hosts: int


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A prepared folder.

    Attributes:
        waiting: hosts that have not finished.
        written: number of shards written now.
    """

    folder: Path
    settings: Settings
    shards: tuple[Shard, ...]
    waiting: tuple[int, ...] = ()
    written: int = 0

    def of(self, split: str) -> list[Shard]:
        return [shard for shard in self.shards if shard.split == split]

    def counts(self, split: str) -> dict[str, Any]:
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
        records = Mapped(range(len(source)), functools.partial(_record, source, self.folder))
        return Stored(records, sizes, self.counts(split))


def _record(source: Any, folder: Path, index: int) -> dict[str, np.ndarray]:
    with _reading(folder):
        return safetensors.numpy.load(source[index])


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
    return from_data(Settings, parse_json(file.read_bytes(), str(file)), str(file))


def open_prepared(folder: Path) -> Prepared:
    """Return a prepared folder with the shards that its finished hosts list."""
    settings = read_settings(folder)
    files = [folder / host_file(Share(index, settings.hosts)) for index in range(settings.hosts)]
    waiting = tuple(index for index, file in enumerate(files) if not file.is_file())
    names = [name for file in files if file.is_file() for name in parse_json(file.read_bytes(), str(file))]
    shards: list[Shard] = []
    for name in sorted(names):
        if (shard := read_shard(folder / name)) is None:
            raise DataError(f"{folder / name}: missing or damaged; prepare again")
        shards.append(shard)
    return Prepared(folder, settings, tuple(shards), waiting)


def load_prepared(
    folder: Path, tokenizer: Tokenizer | None, fields: Mapping[str, Any], preprocessing: Mapping[str, Any]
) -> TaskData:
    """Return a prepared task: training examples are read from disk, validation examples are in memory.

    The folder must have been prepared with these `fields` of the form. Images are preprocessed as a model's files say,
    at the size of the shards.
    """
    prepared = open_prepared(folder)
    settings, form = prepared.settings, prepared.settings.form
    if prepared.waiting:
        names = ", ".join(map(str, prepared.waiting))
        raise DataError(f"{folder}: not prepared to the end (host {names}); the same `headjax prepare` continues")
    for field, value in fields.items():
        if value != (stored := getattr(form, field, None)):
            raise DataError(f"{folder}: prepared with {field} {stored}, config.data asks for {value}")
    stored_tokenizer = Tokenizer.load(folder / TOKENIZER) if settings.tokenizer else None
    for other in (settings.tokenizer, tokenizer.fingerprint if tokenizer else settings.tokenizer):
        if stored_tokenizer is not None and (stored := stored_tokenizer.fingerprint) != other:
            raise DataError(f"{folder}: the vocabulary is {stored}, not {other}; prepare it with --tokenizer")
    data = data_hash(form, stored_tokenizer, settings.seed, [[shard.name, shard.rows] for shard in prepared.shards])
    info = {"text": str(folder), "task": settings.task, "data": data}
    metrics = TASKS[settings.task].metrics if settings.task in TASKS else ()
    if isinstance(form, ImageForm):
        form = form.preprocessed(preprocessing, stored=True)
    train, validation = (prepared.stored(split) for split in SPLITS)
    validation = validation._replace(records=[*each(validation.records)])
    data_of_task = task_data(form, stored_tokenizer, {"train": train, "validation": validation}, info, metrics)
    return data_of_task._replace(threads=READ_AHEAD if is_bucket(folder) else 0)


def write_shard(folder: Path, shard: Shard, records: Records) -> None:
    """Write a shard, which gets its name when it and the file beside it are complete."""
    from array_record.python.array_record_module import ArrayRecordWriter

    path = folder / shard.name
    described = {**shard._asdict(), "sizes": shard.sizes.tolist()}
    with tempfile.TemporaryDirectory() as temporary:
        # ArrayRecord writes files of this machine alone. What a killed process leaves is written over.
        partial = Path(temporary, path.name) if is_bucket(path) else path.with_name(f".{path.name}")
        try:
            path.unlink(missing_ok=True)  # one of other rows, which the file beside it would describe wrongly
            write_file(path.with_suffix(".json"), json.dumps(described, default=int).encode())
            with contextlib.closing(ArrayRecordWriter(str(partial), "group_size:1")) as writer:  # read one by one
                for record in each(records):
                    writer.write(safetensors.numpy.save({name: np.ascontiguousarray(a) for name, a in record.items()}))
            if is_bucket(path):
                copy_file(partial, path)
            else:
                partial.replace(path)
        except (OSError, RuntimeError) as error:  # the library turns the system's errors into RuntimeError
            reason = getattr(error, "strerror", None) or first_line(error)
            raise DataError(f"{path}: cannot be written ({reason})") from None
        finally:
            partial.unlink(missing_ok=True)


def read_shard(path: Path) -> Shard | None:
    """Return the description of a shard that is complete, by the file beside it; None for any other."""
    file = path.with_suffix(".json")
    try:
        data = parse_json(file.read_bytes(), str(file)) if path.is_file() else None
    except (OSError, DataError):
        return None
    return data and Shard(**{**data, "sizes": np.asarray(data["sizes"], np.int32)})


def prepare(
    name: str,
    form: Form,
    splits: Rows,
    tokenizer: Tokenizer | None,
    out: str | Path,
    *,
    source: str = "",
    host: Share = Share(),
    shard_bytes: int = SHARD_BYTES,
    seed: int = 0,
    progress: Progress = silent,
) -> Prepared:
    """Write a task as shards of records, with a manifest and the tokenizer.

    If the call is interrupted (a full disk, a signal, a bad row), complete shards stay, and the same call writes the
    others, and those whose rows have changed. Of several hosts each makes the same call with its own number, on a
    folder that all of them see, and reads and writes its share of the rows; the last of them finishes the folder.
    """
    require(seed >= 0, "seed", f"must not be negative, got {seed}")
    known = checked(form, tokenizer if form.reads_text else None)
    settings = Settings(name, form, source, known.fingerprint if known else "", shard_bytes, seed, host.count)
    folder = path_of(out).expanduser()
    _check_folder(folder, settings)
    with hold(folder, f".{host_file(host)}.lock"):
        with writing(folder):
            if not (folder / MANIFEST).is_file():
                write_file(folder / MANIFEST, dumps(settings).encode())
            if known and not has_tokenizer(folder):
                known.save(folder / TOKENIZER)
            (folder / host_file(host)).unlink(missing_ok=True)  # its shards may change now
        shards: list[tuple[Shard, bool]] = []
        for split in (split for split in SPLITS if split in splits):
            with progress(f"preparing {split}", splits[split].count // host.count, "row") as bar:
                written = [*_shards(folder, settings, known, splits[split], split, host, bar)]
            if host.count == 1 and not any(shard.sizes.size for shard, _ in written):
                raise DataError(form.nothing(split, written[0][0].counts if written else {}, source or name))
            shards += written
        write_file(folder / host_file(host), json.dumps([shard.name for shard, _ in shards]).encode())
    return dataclasses.replace(open_prepared(folder), written=sum(new for _, new in shards))


def _shards(
    folder: Path, settings: Settings, known: Tokenizer, source: RowSource, split: Split, host: Share, bar: Update
) -> Iterator[tuple[Shard, bool]]:
    """Yield a host's shards of a split, and whether each was written now."""
    form, read = settings.form, 0
    for number, rows in enumerate(chunks(source.rows(host), settings.shard_bytes)):
        bar(read := read + len(rows), {})
        place = number * host.count + host.index  # of N hosts each has every N-th number
        path = folder / f"{split}-{place:05d}.array_record"
        before, digest = read_shard(path), fingerprint(rows)
        shard = before
        if shard is None or shard.rows != digest:
            records, counts = form.encode(known, rows, split, (settings.seed, SPLITS.index(split), place))
            shard = Shard(path.name, split, counts, digest, record_sizes(form, records))
            write_shard(folder, shard, records)
        yield shard, shard is not before


def _check_folder(folder: Path, settings: Settings) -> None:
    """Raise `DataError` if a folder has other content, or another preparation."""
    # Other hosts may begin meanwhile, and write the manifest before all else: it is looked for last.
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if (folder / MANIFEST).is_file():
        described = (to_data(each) for each in (read_settings(folder), settings))
        before, now = ({**data.pop("form"), **data} for data in described)
        for name in {**before, **now}:
            if (was := before.get(name)) != now.get(name):
                change = f"{name} was {was!r} and is {now.get(name)!r} now"
                raise DataError(f"{folder}: holds another preparation, {change}; choose another folder")
    elif any(not name.startswith(".") for name in names) or (folder.exists() and not folder.is_dir()):
        raise DataError(f"{folder}: not empty, and not prepared by this command; choose another folder")
