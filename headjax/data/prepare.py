"""Preparation of a task: each host reads its share of the rows and writes shards; the same call resumes.

A shard gets its name when it is complete, so the folder itself says what is left to do.
"""

from __future__ import annotations

import collections
import contextlib
import importlib.metadata
import json
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
from headjax.core.serialize import to_data
from headjax.core.share import Share
from headjax.data.forms import Form
from headjax.data.loading import record_sizes
from headjax.data.rows import SPLITS, Row, Rows, RowSource, Split, chunks, fingerprint
from headjax.data.store import (
    MANIFEST,
    TOKENIZER,
    Prepared,
    Settings,
    Shard,
    has_tokenizer,
    host_file,
    open_prepared,
    read_settings,
    read_shard,
    shard_name,
    write_shard,
)
from headjax.storage.failures import writing
from headjax.storage.files import write_file
from headjax.storage.lock import hold
from headjax.storage.paths import path_of
from headjax.tokenizers.tokenizer import Tokenizer
from headjax.version import __version__

SHARD_BYTES = 2**25
"""Default size of the rows of one shard in bytes, approximately."""

PACKAGES = ("array_record", "numpy", "seqio", "tensorflow-datasets", "tokenizers")


class Written(NamedTuple):
    """A preparation, or a host's part of it, and the number of shards that were written now."""

    prepared: Prepared
    written: int


class Work(NamedTuple):
    """One shard to write: its file and split, the rows to encode, their hash, and the seed of random choices."""

    path: Path
    split: Split
    rows: list[Row]
    fingerprint: str
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
    host: Share = Share(),
    shard_bytes: int = SHARD_BYTES,
    seed: int = 0,
    progress: Progress = silent,
) -> Written:
    """Write a task as shards of records, with a manifest and the tokenizer.

    If the call is interrupted (a full disk, a signal, a bad row), complete shards stay, and the same call writes the
    others, and those whose rows have changed. Shards depend neither on interruptions nor on the number of processes.

    Of several hosts each makes the same call with its own number, on a folder that all of them see, and reads and
    writes its share of the rows. The folder is finished when the last of them is.
    """
    require(processes >= 1, "processes", f"must be at least 1, got {processes}")
    require(shard_bytes >= 1, "shard_bytes", f"must be at least 1, got {shard_bytes}")
    require(seed >= 0, "seed", f"must not be negative, got {seed}")
    tokenizer = tokenizer if form.reads_text else None
    if form.reads_text:
        form.check(tokenizer)
    known = "" if tokenizer is None else tokenizer.fingerprint
    versions = _versions()
    fields = {"task": name, "source": source, "tokenizer": known, "seed": seed, "hosts": host.count}
    settings = Settings(form=form, shard_bytes=shard_bytes, versions=versions, **fields)  # type: ignore[arg-type]
    folder = path_of(out).expanduser()
    _check_folder(folder, settings)
    with hold(folder, f".{host_file(host)}.lock"), _workers(form, tokenizer, processes) as submit:
        with writing(folder):
            if not (folder / MANIFEST).is_file():
                write_file(folder / MANIFEST, (json.dumps(to_data(settings), indent=2) + "\n").encode())
            if tokenizer is not None and not has_tokenizer(folder):
                tokenizer.save(folder / TOKENIZER)
            (folder / host_file(host)).unlink(missing_ok=True)  # its shards may change now
        shards: list[Shard] = []
        written = 0
        for split in (split for split in SPLITS if split in splits):
            with progress(f"preparing {split}", splits[split].count // host.count, "row") as bar:
                ahead = 2 * (processes - 1)
                made = [*_shards(folder, split, splits[split], settings, host, submit, ahead, bar)]
                own = [shard for shard, _ in made]
                written += sum(is_new for _, is_new in made)
            if host.count == 1 and not sum(one.examples for one in own):
                raise DataError(form.nothing(split, own[0].counts if own else {}, source or name))
            shards += own
        listed = json.dumps([to_data(shard) for shard in shards], indent=1) + "\n"
        write_file(folder / host_file(host), listed.encode())
    return Written(open_prepared(folder), written)


def _shards(
    folder: Path,
    split: Split,
    source: RowSource,
    settings: Settings,
    host: Share,
    submit: Submit,
    ahead: int,
    bar: Update,
) -> Iterator[tuple[Shard, bool]]:
    """Yield the shards of a host's rows, and whether each was written now; `ahead` more are under way."""
    waiting: collections.deque[tuple[Future[Shard], bool]] = collections.deque()
    read = 0
    for number, rows in enumerate(chunks(source.rows(host), settings.shard_bytes)):
        read += len(rows)
        bar(read, {})
        place = number * host.count + host.index
        path, found = folder / shard_name(split, place), fingerprint(rows)
        there = read_shard(path)
        if there is not None and there.rows == found:
            waiting.append((_done(there), False))
        else:
            seed = (settings.seed, SPLITS.index(split), place)
            waiting.append((submit(Work(path, split, rows, found, seed)), True))
        while len(waiting) > ahead:
            future, is_new = waiting.popleft()
            yield future.result(), is_new
    yield from ((future.result(), is_new) for future, is_new in waiting)


def _check_folder(folder: Path, wanted: Settings) -> None:
    """Raise `DataError` if a folder has other content, or another preparation."""
    # Other hosts may begin meanwhile, and write the manifest before all else: it is looked for last.
    names = [one.name for one in folder.iterdir()] if folder.is_dir() else []
    if (folder / MANIFEST).is_file():
        if difference := read_settings(folder).difference(wanted):
            raise DataError(f"{folder}: holds another preparation, {difference}; choose another folder")
    elif any(not name.startswith(".") for name in names) or (folder.exists() and not folder.is_dir()):
        raise DataError(f"{folder}: not empty, and not prepared by this command; choose another folder")


def _done(shard: Shard) -> Future[Shard]:
    future: Future[Shard] = Future()
    future.set_result(shard)
    return future


def encode_shard(form: Form, tokenizer: Tokenizer | None, work: Work) -> Shard:
    """Encode rows and write their shard."""
    encoded = form.encode(tokenizer, work.rows, work.split, work.seed)
    counts = {key: int(count) for key, count in encoded.counts.items()}
    shard = Shard(work.path.name, work.split, len(encoded.records), counts, work.fingerprint)
    write_shard(work.path, shard, encoded.records, record_sizes(form, encoded.records))
    return shard


@contextlib.contextmanager
def _workers(form: Form, tokenizer: Tokenizer | None, processes: int) -> Iterator[Submit]:
    """Yield the function that submits work: to this process, or to several others."""
    if processes == 1:
        yield lambda work: _done(encode_shard(form, tokenizer, work))
        return
    # Spawned processes inherit no threads, which a forked one could wait for forever.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=_end_with_parent) as pool:
        try:
            yield lambda work: pool.submit(encode_shard, form, tokenizer, work)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _end_with_parent() -> None:
    """End this process when its parent ends, which alone answers Ctrl-C: a killed parent could not end it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _versions() -> dict[str, str]:
    found = {"headjax": __version__}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
