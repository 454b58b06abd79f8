"""`headjax prepare`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headjax.commands.options import CommandOptions, argument, option
from headjax.commands.outputs import CommandResult, key, record
from headjax.core import numbers
from headjax.core.errors import ConfigError, DataError, HeadjaxError
from headjax.core.fields import Positive, Size
from headjax.core.progress import Progress
from headjax.report.tables import Column, Table
from headjax.storage.paths import path_of

if TYPE_CHECKING:
    from headjax.data.config import Opened
    from headjax.data.store import Prepared, Settings
    from headjax.tokenizers.tokenizer import Tokenizer

LEARNED_FROM = 1_000_000
"""Rows that a vocabulary is learned from at most."""


def _host(text: str) -> tuple[int, int]:
    """Read the number of a host and the number of hosts."""
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise ValueError(f"expected I/N with I from 0 to N - 1, got {text!r}")
    return int(index), int(count)


class Options(CommandOptions):
    task: str = argument("TASK", "task name, NAME:PATH, or a path: mnli, classification:train.csv, ...", reads="task")
    out: str = option(help="folder of the shards", metavar="D", writes="folder")
    source: tuple[str, ...] = option(
        (), "your files, gs:// or hf://datasets/ (default: TFDS)", "PATH", words="many", reads="path"
    )
    tokenizer: str | None = option(None, "a vocab.txt, a folder with a tokenizer, or a MODEL", "PATH", reads="path")
    vocab_size: Size | None = option(None, "tokens to learn without --tokenizer (default: the task's own number)")
    length: Size | None = option(None, "tokens of an example (default: the task's own number)")
    set: tuple[str, ...] = option(
        (), "another field of the task's form (packed=false)", "FIELD=VALUE", words="repeated"
    )
    host: tuple[int, int] = option(
        (0, 1), "one of N hosts that write OUT together, I from 0 to N - 1", "I/N", read=_host, shown="0/1"
    )
    shard_mb: Positive = option(32.0, "text of a shard in MB")
    seed: int = option(0, "seed of random choices")


class Result(CommandResult):
    settings: Settings = record("headjax.data.store.Settings", "task", "tokenizer")
    folder: Prepared = record("headjax.data.store.Prepared", "written", "waiting")
    examples: int = key("in all splits")
    shards: int = key("number of shards of all hosts")
    splits: Mapping[str, Mapping[str, float]] = key("counts by split")
    vocab_size: int = key()
    path: str = key("the folder")
    host: int

    def tables(self) -> Sequence[Table]:
        names = list(dict.fromkeys(name for counts in self.splits.values() for name in counts))
        rows = [(name.replace("_", " "), *(counts.get(name) for counts in self.splits.values())) for name in names]
        columns = (Column(self.settings.task), *(Column(split, numbers.number) for split in self.splits))
        return [Table(columns, rows)]

    def message(self) -> str:
        where = f"{self.shards} shards: {self.path}"
        others = ", ".join(map(str, self.folder.waiting))
        return f"host {self.host}: {where}; hosts that have not finished: {others}" if others else where


def run(options: Options, progress: Progress) -> Result:
    """Writes a task as tokenised shards; started again it continues."""
    from headjax.core.programs import Share
    from headjax.data.store import prepare

    out = path_of(options.out)
    opened, source = _opened(options)
    host, form = Share(*options.host), opened.form
    tokenizer = _tokenizer(opened, options, out.expanduser()) if form.reads_text else None
    settings: dict[str, Any] = {"shard_bytes": int(options.shard_mb * 2**20), "seed": options.seed}
    where: dict[str, Any] = {"source": source, "host": host, "progress": progress}
    folder = prepare(opened.spec.name, form, opened.rows, tokenizer, out, **where, **settings)
    splits = {split: folder.counts(split) for split in ("train", "validation") if folder.of(split)}
    return Result(
        settings=folder.settings,
        folder=folder,
        examples=sum(counts["examples"] for counts in splits.values()),
        shards=len(folder.shards),
        splits=splits,
        vocab_size=0 if tokenizer is None else tokenizer.vocab_size,
        path=str(options.out),
        host=host.index,
    )


def _opened(options: Options) -> tuple[Opened, str]:
    """Return the task's rows, of the files that are named or from TFDS, and where they come from."""
    from headjax.core.fields import read_literal, unknown_name
    from headjax.data.config import EMBEDDED, DataConfig
    from headjax.storage.paths import source_of

    fields: dict[str, Any] = {}
    for entry in options.set:
        name, equals, text = entry.partition("=")
        if not equals:
            raise ConfigError(f"--set: expected FIELD=VALUE, got {entry!r}")
        fields[name] = read_literal(text)
    config = DataConfig(task=options.task, form=fields, length=options.length or 0)
    spec, path = config.source.spec, config.source.path
    known = {field.name for field in dataclasses.fields(spec.form)}
    for name in fields:
        if name not in known:
            raise ConfigError(f"--set: {unknown_name('field', name, known)}")
    for place in map(source_of, options.source):
        if not place.exists() and not place.parent.exists():
            raise DataError(f"{place}: no such file or folder")
    if options.source or path or not spec.sources or spec.name in EMBEDDED:
        if not options.source and not path and spec.name not in EMBEDDED and not spec.folders:
            raise DataError(f"{spec.name}: name its files, {spec.name}:PATH or --source PATH")
        opened = config.open(options.source)
        return opened, opened.place
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        from headjax.data.seqio_tasks import tfds_rows
    except ImportError as error:
        raise HeadjaxError(
            f"{spec.name}: TFDS needs {error.name}: pip install 'headjax[data]'; or name local files with --source"
        ) from None
    return config.open(rows=tfds_rows(spec)), ", ".join(source.name for source in spec.sources)


def _tokenizer(opened: Opened, options: Options, out: Path) -> Tokenizer:
    """The tokenizer that is given, the one of a continued preparation, or a new one learned from the text."""
    import itertools

    from headjax.data.store import TOKENIZER, has_tokenizer, is_prepared
    from headjax.tokenizers.files import open_tokenizer
    from headjax.tokenizers.tokenizer import Tokenizer
    from headjax.tokenizers.vocabularies import train_bpe

    spec, rows = opened.spec, opened.rows
    if options.tokenizer:
        return open_tokenizer(options.tokenizer)
    if spec.vocabulary == "given":
        raise HeadjaxError(f"--tokenizer: {spec.name} needs one: a vocab.txt, a folder with a tokenizer, or a MODEL")
    if is_prepared(out) and has_tokenizer(out):
        return Tokenizer.load(out / TOKENIZER)
    if "train" not in rows:
        raise HeadjaxError("--tokenizer: there is no training text to learn a vocabulary from")
    some = itertools.islice(rows["train"].rows(), LEARNED_FROM)
    texts = (text for row in some for text in opened.form.texts(row))
    return train_bpe(texts, options.vocab_size or spec.vocab_size)
