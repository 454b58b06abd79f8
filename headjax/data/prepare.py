"""Preparation of a task: each host reads its share of the rows and writes shards; the same call resumes.

A shard gets its name when it is complete, so the folder itself says what is left to do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headjax.core.errors import DataError, require
from headjax.core.progress import Progress, Update, silent
from headjax.core.serialize import dumps, to_data
from headjax.core.share import Share
from headjax.data import store
from headjax.data.forms import Form
from headjax.data.rows import SPLITS, Rows, RowSource, Split, chunks, fingerprint
from headjax.storage.directories import hold
from headjax.storage.files import write_file, writing
from headjax.storage.paths import path_of
from headjax.tokenizers.tokenizer import Tokenizer

SHARD_BYTES = 2**25
"""Default size of the rows of one shard in bytes, approximately."""


class Written(NamedTuple):
    """A preparation, or a host's part of it, and the number of shards that were written now."""

    prepared: store.Prepared
    written: int


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
) -> Written:
    """Write a task as shards of records, with a manifest and the tokenizer.

    If the call is interrupted (a full disk, a signal, a bad row), complete shards stay, and the same call writes the
    others, and those whose rows have changed. Of several hosts each makes the same call with its own number, on a
    folder that all of them see, and reads and writes its share of the rows; the last of them finishes the folder.
    """
    require(seed >= 0, "seed", f"must not be negative, got {seed}")
    known = store.checked(form, tokenizer if form.reads_text else None)
    made_by = known.fingerprint if known else ""
    settings = store.Settings(name, form, source, made_by, shard_bytes, seed, host.count)
    folder = path_of(out).expanduser()
    _check_folder(folder, settings)
    with hold(folder, f".{store.host_file(host)}.lock"):
        with writing(folder):
            if not (folder / store.MANIFEST).is_file():
                write_file(folder / store.MANIFEST, dumps(settings).encode())
            if known and not store.has_tokenizer(folder):
                known.save(folder / store.TOKENIZER)
            (folder / store.host_file(host)).unlink(missing_ok=True)  # its shards may change now
        shards: list[tuple[store.Shard, bool]] = []
        for split in (split for split in SPLITS if split in splits):
            with progress(f"preparing {split}", splits[split].count // host.count, "row") as bar:
                written = [*_shards(folder, settings, known, splits[split], split, host, bar)]
            if host.count == 1 and not any(shard.sizes.size for shard, _ in written):
                raise DataError(form.nothing(split, written[0][0].counts if written else {}, source or name))
            shards += written
        write_file(folder / store.host_file(host), json.dumps([shard.name for shard, _ in shards]).encode())
    return Written(store.open_prepared(folder), sum(new for _, new in shards))


def _shards(
    folder: Path, settings: store.Settings, known: Tokenizer, source: RowSource, split: Split, host: Share, bar: Update
) -> Iterator[tuple[store.Shard, bool]]:
    """Yield a host's shards of a split, and whether each was written now."""
    form, read = settings.form, 0
    for number, rows in enumerate(chunks(source.rows(host), settings.shard_bytes)):
        bar(read := read + len(rows), {})
        place = number * host.count + host.index  # of N hosts each has every N-th number
        path = folder / f"{split}-{place:05d}.array_record"
        before, digest = store.read_shard(path), fingerprint(rows)
        shard = before
        if shard is None or shard.rows != digest:
            records, counts = form.encode(known, rows, split, (settings.seed, SPLITS.index(split), place))
            shard = store.Shard(path.name, split, counts, digest, store.record_sizes(form, records))
            store.write_shard(folder, shard, records)
        yield shard, shard is not before


def _check_folder(folder: Path, settings: store.Settings) -> None:
    """Raise `DataError` if a folder has other content, or another preparation."""
    # Other hosts may begin meanwhile, and write the manifest before all else: it is looked for last.
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if (folder / store.MANIFEST).is_file():
        described = (to_data(each) for each in (store.read_settings(folder), settings))
        before, now = ({**data.pop("form"), **data} for data in described)
        for name in {**before, **now}:
            if (was := before.get(name)) != now.get(name):
                change = f"{name} was {was!r} and is {now.get(name)!r} now"
                raise DataError(f"{folder}: holds another preparation, {change}; choose another folder")
    elif any(not name.startswith(".") for name in names) or (folder.exists() and not folder.is_dir()):
        raise DataError(f"{folder}: not empty, and not prepared by this command; choose another folder")
