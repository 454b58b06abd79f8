"""Preparation of a task: rows, chunks, shards that several processes and hosts write; it resumes where it stopped.

A shard has the same name and content whoever writes it, and gets its name when it is complete. The manifest of a host
lists its complete shards after each of them, and is final when the last is. Nothing else has to be remembered.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import importlib.metadata
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from headjax.core.errors import DataError, require
from headjax.core.progress import Progress, Update, silent
from headjax.data.forms import Form
from headjax.data.loading import record_sizes
from headjax.data.prepared import (
    TOKENIZER,
    Host,
    Manifest,
    has_tokenizer,
    joined,
    manifests_in,
    names_in,
)
from headjax.data.rows import SPLITS, Row, Rows, RowSource, Split, chunks, fingerprint
from headjax.data.shards import (
    SUFFIX,
    Shard,
    ShardRecords,
    is_shard,
    number_of,
    read_sizes,
    remove_shard,
    shard_name,
    write_shard,
)
from headjax.storage.files import shown
from headjax.storage.paths import path_of
from headjax.tokenizers.tokenizer import Tokenizer
from headjax.version import __version__

SHARD_BYTES = 2**25
"""Default size of the rows of one shard in bytes, approximately."""

PACKAGES = ("array_record", "numpy", "seqio", "tensorflow-datasets", "tokenizers")


class Prepared(NamedTuple):
    """A finished preparation, or the finished part of a host.

    Attributes:
        manifest: the manifest of the folder; while other hosts are at work, that of the shards of those that are not.
        written: number of shards written by this call; the others existed.
        waiting: numbers of the hosts that have not finished.
    """

    manifest: Manifest
    written: int
    waiting: tuple[int, ...] = ()


class Work(NamedTuple):
    """One shard to write: its file and split, the rows to encode, and the seed of the random choices."""

    path: Path
    split: Split
    rows: list[Row]
    seed: tuple[int, ...]


Submit = Callable[[Work], "Future[Shard]"]


def prepare(
    name: str,
    form: Form,
    splits: Rows,
    tokenizer: Tokenizer | None,
    out: str | Path,
    *,
    source: str = "",
    processes: int = 1,
    host: Host = Host(),
    shard_bytes: int = SHARD_BYTES,
    seed: int = 0,
    progress: Progress = silent,
) -> Prepared:
    """Write a task as shards of records, with a manifest and the tokenizer.

    If the call is interrupted (a full disk, a signal, a bad row), complete shards stay, and the same call resumes. It
    reads the rows again and encodes those of missing shards, and of shards whose rows have changed. The shards depend
    neither on interruptions nor on the number of processes or hosts.

    Of several hosts each makes the same call with its own number, on a folder that all of them see. Each reads all rows
    and encodes those of its shards. The folder is finished when the last of them is.

    Args:
        name: name of the task.
        form: form that encodes its rows.
        splits: its rows.
        tokenizer: tokenizer of its text.
        out: the folder.
        source: origin of the rows, for the manifest.
        processes: number of processes that encode.
        host: the host that calls, if several prepare the task together.
        shard_bytes: approximate size of a shard's rows in bytes.
        seed: seed of the random choices.
        progress: shows the progress.

    Raises:
        DataError: a row that cannot be used, a split without examples, a file that cannot be written, or a folder with
            other content.
    """
    require(processes >= 1, "processes", f"must be at least 1, got {processes}")
    tokenizer = tokenizer if form.reads_text else None
    wanted = _wanted(name, form, source, tokenizer, shard_bytes, seed)
    folder = path_of(out).expanduser()
    journal = Journal(folder, wanted, tokenizer, host)
    with _workers(form, tokenizer, processes) as submit:
        for split in (split for split in SPLITS if split in splits):
            rows = splits[split]
            with progress(f"preparing {split}", rows.count, "row") as bar:
                _write_split(journal, _plan(journal, split, rows, bar), submit, processes)
            if host.count == 1:
                _check_examples(journal.manifest(), split)
    journal.finish()
    whole, waiting = joined(folder, manifests_in(folder), journal.rows)
    for split in () if waiting else splits:
        _check_examples(whole, split)
    return Prepared(whole, journal.written, waiting)


def _wanted(name: str, form: Form, source: str, tokenizer: Tokenizer | None, shard_bytes: int, seed: int) -> Manifest:
    """Return the manifest of a preparation that has written no shard yet, its arguments checked."""
    require(shard_bytes >= 1, "shard_bytes", f"must be at least 1, got {shard_bytes}")
    require(seed >= 0, "seed", f"must not be negative, got {seed}")
    if form.reads_text:
        form.check(tokenizer)
    return Manifest(
        task=name,
        form=form,
        source=source,
        tokenizer="" if tokenizer is None else tokenizer.fingerprint,
        shard_bytes=shard_bytes,
        seed=seed,
        versions=_versions(),
    )


def _check_examples(found: Manifest, split: Split) -> None:
    if not found.counts(split)["examples"]:
        raise DataError(f"{found.source or found.task}: the split {split} has no examples")


def begun(folder: Path, wanted: Manifest, host: Host) -> Manifest:
    """Return the manifest of the host's earlier calls, with the shards that are still whole.

    Raises:
        DataError: the folder has other content, or another preparation.
    """
    names = names_in(folder)  # first: other hosts may begin at any moment
    manifests = manifests_in(folder)
    if folder.exists() and (not folder.is_dir() or not (manifests or all(map(_is_ours, names)))):
        raise DataError(f"{folder}: not empty, and not prepared by this command; choose another folder")
    for other, manifest in manifests.items():
        difference = manifest.difference(wanted)
        if other.count != host.count:
            difference = f"number of hosts was {other.count} and is {host.count} now"
        if difference:
            raise DataError(f"{folder}: holds another preparation, {difference}; choose another folder")
    earlier = manifests.get(host, wanted)
    whole = tuple(shard for shard in earlier.shards if _is_whole(folder, shard, wanted.form.limit))
    return dataclasses.replace(earlier, shards=whole)


def _is_ours(name: str) -> bool:
    """Return whether a killed preparation may have left an entry of this name in a folder without a manifest."""
    return is_shard(name) or name == TOKENIZER or shown(name) != name


def _is_whole(folder: Path, shard: Shard, limit: int) -> bool:
    try:
        ShardRecords([folder / shard.name], [shard.examples])
        read_sizes(folder / shard.name, shard, limit)
    except DataError:
        return False
    return True


class Journal:
    """A host's manifest on disk, which lists its complete shards after each of them.

    `shards` has them by name, `needed` the names of those that this call needs, `written` counts those that it wrote.
    """

    def __init__(self, folder: Path, wanted: Manifest, tokenizer: Tokenizer | None, host: Host) -> None:
        self.folder, self.wanted, self.tokenizer, self.host = folder, wanted, tokenizer, host
        earlier = begun(folder, wanted, host)
        self.shards = {shard.name: shard for shard in earlier.shards}
        self.needed: list[str] = []
        self.written = 0
        self._is_finished, self._rows = earlier.is_finished, hashlib.sha256()

    @property
    def rows(self) -> str:
        """Hash of the rows of all shards so far, of all hosts."""
        return self._rows.hexdigest()[:16]

    def manifest(self, rows: str = "") -> Manifest:
        """Return the manifest of the shards of this call."""
        return dataclasses.replace(self.wanted, shards=tuple(self.shards[name] for name in self.needed), rows=rows)

    def read(self, name: str, rows: str) -> None:
        """Enter the fingerprint of the rows of the next shard, of any host."""
        self._rows.update(f"{name} {rows}\n".encode())

    def forget(self, name: str) -> None:
        """Take a shard out of the manifest, which is no longer finished, before the shard changes."""
        if self.shards.pop(name, None) is not None or self._is_finished:
            self._save()

    def add(self, shard: Shard, *, fresh: bool) -> None:
        """Enter the next shard; `fresh` if this call has written it."""
        self.needed.append(shard.name)
        self.shards[shard.name] = shard
        self.written += fresh
        if fresh:
            self._save()

    def finish(self) -> None:
        """Remove shards without rows, and write the final manifest."""
        for name in names_in(self.folder):
            if name.endswith(SUFFIX) and is_shard(name) and self.host.owns(number_of(name)) and name not in self.needed:
                self.forget(name)
                remove_shard(self.folder / name)
        self._write(self.manifest(self.rows))

    def _save(self) -> None:
        self._is_finished = False
        self._write(dataclasses.replace(self.wanted, shards=tuple(self.shards.values())))

    def _write(self, manifest: Manifest) -> None:
        manifest.write(self.folder / self.host.manifest)
        try:
            if self.tokenizer is not None and not has_tokenizer(self.folder):
                self.tokenizer.save(self.folder / TOKENIZER)
        except OSError as error:
            raise DataError(f"{self.folder / TOKENIZER}: cannot be written ({error.strerror})") from None


def _plan(journal: Journal, split: Split, source: RowSource, bar: Update) -> Iterator[Shard | Work]:
    """Yield for every chunk of rows of this host its shard, if it exists already, or the work to do.

    Raises:
        DataError: there are no rows.
    """
    read = 0
    for number, rows in enumerate(chunks(source.rows(), journal.wanted.shard_bytes)):
        read += len(rows)
        bar(read, {})
        name, found = shard_name(split, number), fingerprint(rows)
        journal.read(name, found)
        if not journal.host.owns(number):
            continue
        there = journal.shards.get(name)
        if there is not None and there.rows == found:
            yield there
        else:
            journal.forget(name)
            seed = (journal.wanted.seed, SPLITS.index(split), number)
            yield Work(journal.folder / name, split, rows, seed)
    if not read:
        _check_examples(journal.wanted, split)


def _write_split(journal: Journal, planned: Iterator[Shard | Work], submit: Submit, processes: int) -> None:
    """Write the shards of a split, several at the same time, and enter each in the journal, in order."""
    waiting: collections.deque[Shard | Future[Shard]] = collections.deque()

    def enter_next() -> None:
        entry = waiting.popleft()
        journal.add(entry if isinstance(entry, Shard) else entry.result(), fresh=not isinstance(entry, Shard))

    for entry in planned:
        waiting.append(submit(entry) if isinstance(entry, Work) else entry)
        if len(waiting) > 2 * (processes - 1):
            enter_next()
    while waiting:
        enter_next()


def encode_shard(form: Form, tokenizer: Tokenizer | None, work: Work) -> Shard:
    """Encode rows and write their shard."""
    encoded = form.encode(tokenizer, work.rows, work.split, work.seed)
    sums = write_shard(work.path, encoded.records, record_sizes(form, encoded.records))
    counts = {key: int(count) for key, count in encoded.counts.items()}
    return Shard(work.path.name, work.split, len(encoded.records), fingerprint(work.rows), counts, **sums)


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
    with ProcessPoolExecutor(processes, context, initializer=_end_with_parent) as pool:

        def elsewhere(work: Work) -> Future[Shard]:
            with _interrupts_held_back():  # each submission starts a process until there are enough
                return pool.submit(encode_shard, form, tokenizer, work)

        with _interrupts_held_back():
            pool.submit(os.getpid)  # starts a process while the first rows are read
        try:
            yield elsewhere
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _end_with_parent() -> None:
    """End this process as soon as its parent has ended: a killed parent could not end it."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return  # no process started this one

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Hold SIGINT back from this thread; processes started meanwhile never get it.

    Ctrl-C interrupts all processes of a terminal. The one that started the others lets them end their shards.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _versions() -> dict[str, str]:
    found = {"headjax": __version__}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
