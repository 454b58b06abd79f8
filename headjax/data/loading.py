"""From a form and its rows to the data that a run reads: rows are encoded in memory, or one by one when read."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headjax.core.errors import DataError
from headjax.data.augmentation import Augmentation
from headjax.data.examples import Padded, Record, Records, Source
from headjax.data.forms.form import MISSING, Form, Seed
from headjax.data.forms.images import augmented
from headjax.data.rows import Row, Rows, RowSource, Split, fingerprint
from headjax.data.stream import LengthBuckets
from headjax.data.task import TaskData
from headjax.tokenizers.tokenizer import Tokenizer


class Reading(NamedTuple):
    """Choices of how records are read and measured; the records do not depend on them."""

    metrics: Sequence[str] = ()
    buckets: Sequence[int] = ()
    augmentation: Augmentation | None = None
    threads: int = 0


class Stored(NamedTuple):
    """The records of a split, in memory or on disk."""

    records: Records
    sizes: np.ndarray
    counts: Mapping[str, Any]


def load_rows(
    form: Form,
    rows: Mapping[Split, Sequence[Row]],
    tokenizer: Tokenizer | None,
    info: Mapping[str, Any],
    reading: Reading = Reading(),
    seed: Seed = (0,),
) -> TaskData:
    """Encode rows in memory and return them as a task's data."""
    if form.reads_text:
        form.check(tokenizer)
    splits: dict[Split, Stored] = {}
    trained = ""
    for split, some in rows.items():
        encoded = form.encode(tokenizer, some, split, seed)
        if some and not len(encoded.records):
            raise DataError(form.nothing(split, encoded.counts, some[0].place))
        sizes = record_sizes(form, encoded.records)
        splits[split] = Stored(encoded.records, sizes, totals([(len(sizes), encoded.counts)]))
        if split == "train":
            trained = encoded.fingerprint or fingerprint(some)
    return task_data(form, tokenizer, splits, {"data": trained, **info}, reading)


def task_data(
    form: Form,
    tokenizer: Tokenizer | None,
    splits: Mapping[Split, Stored],
    info: Mapping[str, Any],
    reading: Reading = Reading(),
) -> TaskData:
    """Return records, wherever they are stored, as a task's data."""
    missing = {split: found.counts[MISSING] for split, found in splits.items() if MISSING in found.counts}
    if missing:
        some = (f"{count:,} of {count + len(splits[split].records):,} in {split}" for split, count in missing.items())
        told = f"rows without a label (blank, null, - or -1) are left out, {', '.join(some)}"
        warnings.warn(f"{info.get('text', info.get('task', ''))}: {told}", UserWarning, stacklevel=2)
    sources = {
        split: form.examples(tokenizer, found.records, found.sizes, split) if len(found.records) else ()
        for split, found in splits.items()
    }
    held = splits["validation"]
    train: Source = sources.get("train", ())
    if len(train):
        train = _bucketed(augmented(train, reading.augmentation), reading.buckets)
    known: dict[str, Any] = {**info, **{split: dict(found.counts) for split, found in splits.items()}}
    if tokenizer is not None:
        known["tokenizer"] = tokenizer.fingerprint
    if form.label_names:
        known["labels"] = list(form.label_names)
    measured = form.measured(reading.metrics, held.counts, sources["validation"])
    return TaskData(tokenizer, train, sources["validation"], known, measured, reading.threads)


def _bucketed(source: Source, buckets: Sequence[int]) -> Source:
    if not buckets:
        return source
    if not isinstance(source, Padded):
        raise DataError("config.data.buckets: the examples of this task are all of one length")
    return LengthBuckets(source, tuple(buckets))


def record_sizes(form: Form, records: Records) -> np.ndarray:
    """Return the numbers of tokens, int32 `[records]`."""
    return np.asarray([form.tokens(records[index]) for index in range(len(records))], np.int32)


def totals(parts: Iterable[tuple[int, Mapping[str, int]]]) -> dict[str, Any]:
    """Return the sums of examples and counts, with words and bytes per token where they are known."""
    total: dict[str, Any] = {"examples": 0}
    for examples, counts in parts:
        total["examples"] += examples
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    for name in ("words", "bytes"):
        if name in total and total.get("tokens"):
            total[f"{name}_per_token"] = total[name] / total["tokens"]
    return total


def read_when_asked(form: Form, rows: Rows) -> dict[Split, Stored]:
    """Return the records of rows that are encoded each time they are read (images in their files)."""
    return {
        split: Stored(RowRecords(form, source), np.ones(source.count, np.int64), {"examples": source.count})
        for split, source in rows.items()
    }


@dataclasses.dataclass(frozen=True)
class RowRecords:
    """Records by index, one of each row, encoded each time it is read."""

    form: Form
    source: RowSource

    def __len__(self) -> int:
        return self.source.count

    def __getitem__(self, index: int) -> Record:
        return self.form.encode(None, [self.source.at(index)], "train", ()).records[0]
