"""From a form and its records to the data that a run reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headjax.core.errors import DataError
from headjax.data.augmentation import Augmentation
from headjax.data.examples import Padded, Source
from headjax.data.forms.form import Form, Seed
from headjax.data.forms.images import augmented
from headjax.data.rows import Split, TaskRow
from headjax.data.store import Stored, encode_rows
from headjax.data.stream import LengthBuckets
from headjax.data.task import TaskData
from headjax.tokenizers.tokenizer import Tokenizer


class Reading(NamedTuple):
    """How examples are read and measured, of which the records know nothing.

    Attributes:
        metrics: the task's own metrics, the headline first; empty takes those that are usual for the form.
        buckets: lengths that training batches are padded to, besides the longest example's; one compilation each.
        augmentation: what training does to images; None is what is usual for the form.
    """

    metrics: Sequence[str] = ()
    buckets: Sequence[int] = ()
    augmentation: Augmentation | None = None


def load_rows(
    form: Form,
    rows: Mapping[Split, Sequence[TaskRow]],
    tokenizer: Tokenizer | None,
    info: Mapping[str, Any],
    reading: Reading = Reading(),
    seed: Seed = (0,),
) -> TaskData:
    """Encodes rows into memory and returns them as a task's data.

    Args:
        form: how rows become examples.
        rows: by split; a split without rows has no examples.
        tokenizer: of the text.
        info: what to report of the data besides its counts.
        reading: how examples are read.
        seed: of what is drawn at random.

    Raises:
        DataError: a row that cannot be used, or a split whose rows give no example.
    """
    found = encode_rows(form, rows, tokenizer, seed)
    return task_data(form, tokenizer, found.splits, {"data": found.fingerprint, **info}, reading)


def task_data(
    form: Form,
    tokenizer: Tokenizer | None,
    splits: Mapping[Split, Stored],
    info: Mapping[str, Any],
    reading: Reading = Reading(),
) -> TaskData:
    """Returns records, wherever they are stored, as a task's data.

    Args:
        form: how the records become examples.
        tokenizer: of the text.
        splits: the records; `train` may be missing or empty.
        info: what to report of the data besides its counts.
        reading: how examples are read.

    Raises:
        DataError: an augmentation of what are no images, or buckets of examples of one length.
    """
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
    return TaskData(tokenizer, train, sources["validation"], known, measured)


def _bucketed(source: Source, buckets: Sequence[int]) -> Source:
    if not buckets:
        return source
    if not isinstance(source, Padded):
        raise DataError("config.data.buckets: the examples of this task are all of one length")
    return LengthBuckets(source, tuple(buckets))
