"""Preparation of a task: rows, chunks, shards written by several processes, manifest; it resumes where it stopped."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import importlib.metadata
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from headjax.core.errors import DataError, require
from headjax.core.paths import path_of, remove_tree
from headjax.core.progress import Progress, Update, silent
from headjax.core.serialize import to_data
from headjax.data.forms import Form
from headjax.data.loading import record_sizes
from headjax.data.prepared import (
    MANIFEST,
    TOKENIZER,
    UNFINISHED,
    Manifest,
    Shard,
    ShardRecords,
    load_manifest,
    sizes_path,
    write_shard,
)
from headjax.data.rows import Row, Rows, RowSource, Split, chunks, fingerprint
from headjax.tokenizers.tokenizer import Tokenizer
from headjax.version import __version__

SHARD_BYTES = 2**25
"""Default size of the rows of one shard in bytes, approximately."""

SPLITS: tuple[Split, ...] = ("train", "validation")
PACKAGES = ("array_record", "numpy", "seqio", "tensorflow-datasets", "tokenizers")
SETTINGS = ("task", "form", "source", "tokenizer", "shard_bytes", "seed")
"""Fields of the manifest that must be the same for a preparation to resume."""


class Work(NamedTuple):
    """One shard to write.

    Attributes:
        path: its file.
        split: its split.
        rows: the rows to encode.
        seed: seed of the random choices.
    """

    path: Path
    split: Split
    rows: list[Row]
    seed: tuple[int, ...]


Submit = Callable[[Work], "Future[Shard]"]


class Prepared(NamedTuple):
    """A finished preparation.

    Attributes:
        manifest: the manifest of the folder.
        written: number of shards written by this call; the others existed.
    """

    manifest: Manifest
    written: int


def prepare(
    name: str,
    form: Form,
    splits: Rows,
    tokenizer: Tokenizer | None,
    out: str | Path,
    *,
    source: str = "",
    processes: int = 1,
    shard_bytes: int = SHARD_BYTES,
    seed: int = 0,
    progress: Progress = silent,
) -> Prepared:
    """Write a task as shards of records, with a manifest and the tokenizer.

    A shard gets its name when it is complete. If the call is interrupted (a full disk, a signal, a bad row), complete
    shards stay, and the same call resumes: it reads the rows again and encodes those of missing shards, and of shards
    whose rows have changed. The result depends neither on interruptions nor on the number of processes.

    Args:
        name: name of the task.
        form: form that encodes its rows.
        splits: its rows.
        tokenizer: tokenizer of its text.
        out: the folder.
        source: origin of the rows, for the manifest.
        processes: number of processes that encode.
        shard_bytes: approximate size of a shard's rows in bytes.
        seed: seed of the random choices.
        progress: shows the progress.

    Raises:
        DataError: a row that cannot be used, a split without examples, a file that cannot be written, or a folder with
            other content.
    """
    require(processes >= 1, "processes", f"must be at least 1, got {processes}")
    require(shard_bytes >= 1, "shard_bytes", f"must be at least 1, got {shard_bytes}")
    require(seed >= 0, "seed", f"must not be negative, got {seed}")
    tokenizer = tokenizer if form.reads_text else None
    if form.reads_text:
        form.check(tokenizer)
    manifest = Manifest(
        task=name,
        form=form,
        source=source,
        tokenizer="" if tokenizer is None else tokenizer.fingerprint,
        shard_bytes=shard_bytes,
        seed=seed,
        versions=_versions(),
    )
    journal = _Journal(path_of(out).expanduser(), manifest, tokenizer)
    try:
        _write_splits(journal, splits, processes, progress)
    except BaseException:
        journal.leave()
        raise
    return Prepared(journal.finish(), journal.written)


def _write_splits(journal: _Journal, splits: Rows, processes: int, progress: Progress) -> None:
    """Write the shards of every split and enter them in the journal."""
    wanted = journal.wanted
    with _workers(wanted.form, journal.tokenizer, processes) as submit:
        for split in (split for split in SPLITS if split in splits):
            rows = splits[split]
            with progress(f"preparing {split}", rows.count, "row") as bar:
                planned = _plan(journal, split, rows, bar)
                examples = sum(shard.examples for shard in _in_order(planned, submit, processes, journal))
            if not examples:
                raise DataError(f"{wanted.source or wanted.task}: the split {split} has no examples")


class _Journal:
    """The list of complete shards, saved on disk after each of them.

    Args:
        folder: the prepared folder.
        wanted: the final manifest, without shards.
        tokenizer: tokenizer of the text.

    Raises:
        DataError: the folder has other content.
    """

    def __init__(self, folder: Path, wanted: Manifest, tokenizer: Tokenizer | None) -> None:
        self.folder, self.wanted, self.tokenizer, self.written = folder, wanted, tokenizer, 0
        self.there: dict[str, Shard] = {}
        self.shards: list[Shard] = []
        manifests = [file for file in (folder / UNFINISHED, folder / MANIFEST) if file.is_file()]
        if manifests:
            before = load_manifest(manifests[0])
            for field in SETTINGS:
                old, new = getattr(before, field), getattr(wanted, field)
                if old != new:
                    raise DataError(f"{folder}: holds another preparation, {_change(field, old, new)}; choose another")
            self.there = {shard.name: shard for shard in before.shards if _is_whole(folder, shard)}
        elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise DataError(f"{folder}: not empty, and not prepared by this command; choose another folder")

    def begin(self) -> None:
        """Make the folder, before its first shard."""
        if not (self.folder / UNFINISHED).is_file() and not (self.folder / MANIFEST).is_file():
            self.wanted.write(self.folder, UNFINISHED)
        if self.tokenizer is not None and not (self.folder / TOKENIZER).is_dir():
            _save_tokenizer(self.tokenizer, self.folder / TOKENIZER)

    def leave(self) -> None:
        """Remove the files that `begin` made if no shard was written."""
        if not self.shards and not self.there and (self.folder / UNFINISHED).is_file():
            (self.folder / UNFINISHED).unlink()
            remove_tree(self.folder / TOKENIZER)
            with contextlib.suppress(OSError):
                self.folder.rmdir()

    def add(self, shard: Shard, *, fresh: bool) -> None:
        """Enter the next shard; `fresh` if this call has written it."""
        self.shards.append(shard)
        if fresh:
            self.written += 1
            known = self.there | {shard.name: shard for shard in self.shards}
            ordered = tuple(known[name] for name in sorted(known))
            dataclasses.replace(self.wanted, shards=ordered).write(self.folder, UNFINISHED)
            (self.folder / MANIFEST).unlink(missing_ok=True)

    def finish(self) -> Manifest:
        """Remove shards without rows and write the manifest."""
        for name in self.there.keys() - {shard.name for shard in self.shards}:
            for file in (self.folder / name, sizes_path(self.folder / name)):
                file.unlink(missing_ok=True)
        manifest = dataclasses.replace(self.wanted, shards=tuple(self.shards))
        manifest.write(self.folder)
        (self.folder / UNFINISHED).unlink(missing_ok=True)
        return manifest


def _plan(journal: _Journal, split: Split, source: RowSource, bar: Update) -> Iterator[Shard | Work]:
    """Yield for every chunk of rows its shard, if it exists already, or the work to do."""
    read = 0
    for number, rows in enumerate(chunks(source.rows(), journal.wanted.shard_bytes)):
        read += len(rows)
        bar(read, {})
        name = f"{split}-{number:05d}.array_record"
        found = journal.there.get(name)
        if found is not None and found.rows == fingerprint(rows):
            yield found
        else:
            journal.begin()
            seed = (journal.wanted.seed, SPLITS.index(split), number)
            yield Work(journal.folder / name, split, rows, seed)


def _in_order(planned: Iterator[Shard | Work], submit: Submit, processes: int, journal: _Journal) -> Iterator[Shard]:
    """Yield the shards in order, several written at the same time; each is entered in the journal when complete."""
    waiting: collections.deque[Shard | Future[Shard]] = collections.deque()

    def next_one() -> Shard:
        entry = waiting.popleft()
        shard = entry if isinstance(entry, Shard) else entry.result()
        journal.add(shard, fresh=not isinstance(entry, Shard))
        return shard

    for entry in planned:
        waiting.append(submit(entry) if isinstance(entry, Work) else entry)
        if len(waiting) > 2 * (processes - 1):
            yield next_one()
    while waiting:
        yield next_one()


def encode_shard(form: Form, tokenizer: Tokenizer | None, work: Work) -> Shard:
    """Encode rows and write their shard."""
    encoded = form.encode(tokenizer, work.rows, work.split, work.seed)
    sizes = record_sizes(form, encoded.records)
    write_shard(work.path, encoded.records, sizes)
    counts = {key: int(count) for key, count in encoded.counts.items()}
    return Shard(work.path.name, work.split, len(encoded.records), fingerprint(work.rows), counts)


@contextlib.contextmanager
def _workers(form: Form, tokenizer: Tokenizer | None, processes: int) -> Iterator[Submit]:
    """Yield the function that submits work: to this process, or to several others."""
    if processes == 1:

        def here(work: Work) -> Future[Shard]:
            future: Future[Shard] = Future()
            future.set_result(encode_shard(form, tokenizer, work))
            return future

        yield here
        return
    # Spawned processes inherit no threads, which a forked one could wait for forever.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context) as pool:
        try:
            yield lambda work: pool.submit(encode_shard, form, tokenizer, work)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _is_whole(folder: Path, shard: Shard) -> bool:
    try:
        return len(ShardRecords([folder / shard.name], [shard.examples]).sizes()) == shard.examples
    except DataError:
        return False


def _change(field: str, old: object, new: object) -> str:
    """Return the difference between two settings in words."""
    if isinstance(old, Form) and isinstance(new, Form):
        before, now = to_data(old), to_data(new)
        field = next((name for name in now if before.get(name) != now[name]), field)
        old, new = before.get(field), now.get(field)
    return f"{field} was {old!r} and is {new!r} now"


def _save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    try:
        tokenizer.save(folder)
    except OSError as error:
        raise DataError(f"{folder}: cannot be written ({error.strerror})") from None


def _versions() -> dict[str, str]:
    found = {"headjax": __version__}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
