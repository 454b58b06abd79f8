"""Preparation of a task: each host reads its share of the rows and writes shards; the same call resumes.

A shard gets its name when it is complete, so the folder itself says what is left to do.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from headjax.core.errors import DataError, require
from headjax.core.progress import Progress, Update, silent
from headjax.core.serialize import dumps, to_data
from headjax.core.share import Share
from headjax.data.forms import Form
from headjax.data.loading import checked, record_sizes
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
    write_shard,
)
from headjax.storage.directories import hold
from headjax.storage.failures import writing
from headjax.storage.files import write_file
from headjax.storage.paths import path_of
from headjax.tokenizers.tokenizer import Tokenizer

SHARD_BYTES = 2**25
"""Default size of the rows of one shard in bytes, approximately."""


class Written(NamedTuple):
    """A preparation, or a host's part of it, and the number of shards that were written now."""

    prepared: Prepared
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
    require(seed >= 0, "seed", f"must not be negative, got {seed}")
    known = checked(form, tokenizer if form.reads_text else None)
    settings = Settings(
        task=name,
        form=form,
        source=source,
        tokenizer=known.fingerprint if known else "",
        shard_bytes=shard_bytes,
        seed=seed,
        hosts=host.count,
    )
    folder = path_of(out).expanduser()
    _check_folder(folder, settings)
    with hold(folder, f".{host_file(host)}.lock"), _pool(processes) as pool:
        with writing(folder):
            if not (folder / MANIFEST).is_file():
                write_file(folder / MANIFEST, dumps(settings).encode())
            if known and not has_tokenizer(folder):
                known.save(folder / TOKENIZER)
            (folder / host_file(host)).unlink(missing_ok=True)  # its shards may change now
        shards: list[Shard] = []
        written = 0
        for split in (split for split in SPLITS if split in splits):
            with progress(f"preparing {split}", splits[split].count // host.count, "row") as bar:
                made = _submit(folder, settings, host, split, splits[split], known, pool, 2 * (processes - 1), bar)
                own = [one.result() if isinstance(one, Future) else one for one in made]
            if host.count == 1 and not sum(one.examples for one in own):
                raise DataError(form.nothing(split, own[0].counts if own else {}, source or name))
            shards += own
            written += sum(isinstance(one, Future) for one in made)
        write_file(folder / host_file(host), (json.dumps([to_data(one) for one in shards], indent=1) + "\n").encode())
    return Written(open_prepared(folder), written)


def _submit(
    folder: Path,
    settings: Settings,
    host: Share,
    split: Split,
    source: RowSource,
    tokenizer: Tokenizer,
    pool: Executor,
    ahead: int,
    bar: Update,
) -> list[Shard | Future[Shard]]:
    """Return the shards of a host's rows: those that are there, and those that the pool writes, `ahead` at a time."""
    made: list[Shard | Future[Shard]] = []
    read = 0
    for rows in chunks(source.rows(host), settings.shard_bytes):
        read += len(rows)
        bar(read, {})
        place = len(made) * host.count + host.index  # of N hosts each has every N-th number
        shard = Shard(f"{split}-{place:05d}.array_record", split, 0, {}, fingerprint(rows))
        there, seed = read_shard(folder / shard.name), (settings.seed, SPLITS.index(split), place)
        same = there is not None and there.rows == shard.rows
        made.append(there if same else pool.submit(_encode, folder, settings.form, tokenizer, shard, rows, seed))  # type: ignore[arg-type]
        if len(made) > ahead and isinstance(oldest := made[-1 - ahead], Future):
            oldest.result()
    return made


def _encode(
    folder: Path, form: Form, tokenizer: Tokenizer, shard: Shard, rows: list[Row], seed: tuple[int, ...]
) -> Shard:
    """Encode rows, write their shard, and return it with its counts."""
    encoded = form.encode(tokenizer, rows, shard.split, seed)
    counts = {key: int(count) for key, count in encoded.counts.items()}
    shard = Shard(shard.name, shard.split, len(encoded.records), counts, shard.rows)
    write_shard(folder, shard, encoded.records, record_sizes(form, encoded.records))
    return shard


def _check_folder(folder: Path, wanted: Settings) -> None:
    """Raise `DataError` if a folder has other content, or another preparation."""
    # Other hosts may begin meanwhile, and write the manifest before all else: it is looked for last.
    names = [one.name for one in folder.iterdir()] if folder.is_dir() else []
    if (folder / MANIFEST).is_file():
        if difference := read_settings(folder).difference(wanted):
            raise DataError(f"{folder}: holds another preparation, {difference}; choose another folder")
    elif any(not name.startswith(".") for name in names) or (folder.exists() and not folder.is_dir()):
        raise DataError(f"{folder}: not empty, and not prepared by this command; choose another folder")


class _Here(Executor):
    """This process, which does what is submitted at once."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*args, **options))
        return done


@contextlib.contextmanager
def _pool(processes: int) -> Iterator[Executor]:
    """Yield what encodes: this process, or several, spawned without threads of this one that a fork would wait for."""
    spawn = multiprocessing.get_context("spawn")
    with _Here() if processes == 1 else ProcessPoolExecutor(processes, spawn, initializer=_end_with_parent) as pool:
        try:
            yield pool
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
