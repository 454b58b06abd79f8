"""Preparation of a task: rows, chunks, shards that several processes and hosts write; it resumes where it stopped."""

from __future__ import annotations

import collections
import contextlib
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
from headjax.core.paths import path_of
from headjax.core.progress import Progress, Update, silent
from headjax.data.forms import Form
from headjax.data.journal import Host, Journal, Prepared
from headjax.data.loading import record_sizes
from headjax.data.prepared import SHARD, Manifest, Shard, write_shard
from headjax.data.rows import Row, Rows, RowSource, Split, chunks, fingerprint
from headjax.tokenizers.tokenizer import Tokenizer
from headjax.version import __version__

SHARD_BYTES = 2**25
"""Default size of the rows of one shard in bytes, approximately."""

SPLITS: tuple[Split, ...] = ("train", "validation")
PACKAGES = ("array_record", "numpy", "seqio", "tensorflow-datasets", "tokenizers")


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

    A shard gets its name when it is complete. If the call is interrupted (a full disk, a signal, a bad row), complete
    shards stay, and the same call resumes: it reads the rows again and encodes those of missing shards, and of shards
    whose rows have changed. The result depends neither on interruptions nor on the number of processes or hosts.

    Of several hosts each makes the same call with its own number, on a folder that all of them see. Each reads all rows
    and encodes those of its own shards. The last to finish writes the manifest.

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
        DataError: a row that cannot be used, a split without examples, a file that cannot be written, a folder with
            other content, or hosts that have read other rows.
        HeadjaxError: another process has the host's number.
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
    with Journal(path_of(out).expanduser(), manifest, tokenizer, host) as journal:
        _write_splits(journal, splits, processes, progress)
        return journal.finish()


def _write_splits(journal: Journal, splits: Rows, processes: int, progress: Progress) -> None:
    """Write the shards of every split and enter them in the journal."""
    wanted = journal.wanted
    with _workers(wanted.form, journal.tokenizer, processes) as submit:
        for split in (split for split in SPLITS if split in splits):
            rows = splits[split]
            with progress(f"preparing {split}", rows.count, "row") as bar:
                planned = _plan(journal, split, rows, bar)
                examples = sum(shard.examples for shard in _in_order(planned, submit, processes, journal))
            if not examples and journal.host.count == 1:
                raise _empty(wanted, split)


def _empty(wanted: Manifest, split: Split) -> DataError:
    return DataError(f"{wanted.source or wanted.task}: the split {split} has no examples")


def _plan(journal: Journal, split: Split, source: RowSource, bar: Update) -> Iterator[Shard | Work]:
    """Yield for every chunk of rows of this host its shard, if it exists already, or the work to do.

    Raises:
        DataError: there are no rows.
    """
    read = 0
    for number, rows in enumerate(chunks(source.rows(), journal.wanted.shard_bytes)):
        read += len(rows)
        bar(read, {})
        name = f"{split}-{number:05d}{SHARD}"
        if not journal.host.owns(number):
            journal.read(name, fingerprint(rows))
            continue
        journal.read(name, "")
        found = journal.there.get(name)
        if found is not None and found.rows == fingerprint(rows):
            yield found
        else:
            journal.begin()
            seed = (journal.wanted.seed, SPLITS.index(split), number)
            yield Work(journal.folder / name, split, rows, seed)
    if not read:
        raise _empty(journal.wanted, split)


def _in_order(planned: Iterator[Shard | Work], submit: Submit, processes: int, journal: Journal) -> Iterator[Shard]:
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
    """End this process as soon as the one that started it has: one that was killed could not tell it to."""
    parent = multiprocessing.parent_process()
    assert parent is not None

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
