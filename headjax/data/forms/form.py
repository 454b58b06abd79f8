"""Base of the forms: a form encodes rows as records, makes examples of records, and names their measure."""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from headjax.core.class_names import ClassIndex, label_name, tell_nothing
from headjax.core.errors import DataError
from headjax.core.fields import Checked, Size, unknown_name
from headjax.core.serialize import to_data
from headjax.data.examples import ExampleSource, MeasureSpec, Padded, Record, Records, TaskData, each, pad_sequence
from headjax.data.rows import Row, Split, fingerprint
from headjax.tokenizers.tokenizer import Tokenizer

Seed = tuple[int, ...]

MISSING = "missing_labels"  # name of the count of rows without a label, which are left out; counts without it have none
CLASS_METRICS = ("accuracy", "macro_f1", "matthews")  # metrics of classes if a task names none


class Encoded(NamedTuple):
    """Rows as records."""

    records: Records
    counts: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Form(Checked, abc.ABC):
    """Base of the forms. Their fields stand in the manifest of prepared shards, which are read as they were written."""

    # Types of the rows' fields by name: `text`, `texts`, `integer`, `number`, `label` or `image`.
    fields: ClassVar[Mapping[str, str]] = {}
    # The measure of its examples, see `MeasureSpec`; `classes` without classes are numbers; empty is the loss.
    measure: ClassVar[str] = ""
    divided_by: ClassVar[str] = ""  # the field by whose hash rows are held out without a validation file; or the first
    reads_text: ClassVar[bool] = True  # rows have text; then there is a tokenizer, else None in its place

    @property
    def wanted(self) -> Mapping[str, str]:
        """The fields that every row must have, with their types."""
        return self.fields

    @property
    def limit(self) -> int:
        """Greatest number of tokens of a record, see `tokens`."""
        return int(getattr(self, "length", 1))

    @property
    def label_names(self) -> tuple[str, ...]:
        """The classes in the order of their numbers; empty if labels are not classes."""
        return tuple(getattr(self, "classes", ()))

    @functools.cached_property
    def index(self) -> ClassIndex:
        return ClassIndex(self.label_names)

    def labels_of(self, row: Row) -> tuple[str, ...]:
        """Return the names of the classes in a row, from which a form without classes learns them."""
        return ()

    def check(self, tokenizer: Tokenizer) -> None:
        """Raise `DataError` if the tokenizer lacks a special token that the form needs."""

    def texts(self, row: Row) -> Iterable[str]:
        """Return a row's texts, to learn a vocabulary from."""
        return [row.values[name] for name, what in self.fields.items() if what == "text" and name in row.values]

    @abc.abstractmethod
    def encode(self, tokenizer: Tokenizer, rows: Sequence[Row], split: Split, seed: Seed) -> Encoded:
        """Return the records of some rows, a function of the arguments alone."""

    def tokens(self, record: Record) -> int:
        """Return the number of tokens of a record on its longer side; 1 for records without tokens."""
        return len(record["input_ids"])

    @abc.abstractmethod
    def examples(self, tokenizer: Tokenizer, records: Records, sizes: np.ndarray, split: Split) -> ExampleSource:
        """Return records as examples, each made when it is read."""

    def measured(self, metrics: Sequence[str], counts: Mapping[str, Any], source: ExampleSource) -> MeasureSpec | None:
        """Return the measure of examples to evaluate on; None for the loss alone."""
        names, measure = self.label_names, self.measure
        measure = "numbers" if measure == "classes" and not names else measure
        chosen = tuple(metrics) or (CLASS_METRICS if measure == "classes" else ())
        options: dict[str, Any] = {"primary_metric": chosen[0], "chosen": chosen} if chosen else {}
        return MeasureSpec(measure, options | ({"names": names} if names else {})) if measure else None

    def protocol(self, tokenizer: Tokenizer, counts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what a fixed protocol of evaluation states, by the counts of the examples to evaluate on."""
        return {}

    def nothing(self, split: Split, counts: Mapping[str, int], place: str) -> str:
        """Return the error message for rows, starting at a place, that gave no record."""
        what = "labels" if MISSING in counts else f"examples (length is {self.limit})"
        return f"{place}: the split {split} has no {what}"

    def number(self, label: Any, place: str) -> int:
        """Return the number of a class by its name, of classes without names also by `LABEL_2`; a number is itself."""
        result, names = label, self.label_names
        if isinstance(label, str):
            tried = [label.strip(), label_name(label)]
            if tell_nothing(names):
                tried.append(tried[1].casefold().removeprefix("label_"))
            result = next((number for name in tried if (number := self.index.find(name)) is not None), None)
        if result is None or result not in range(len(names)):
            raise DataError(f"{place}: {unknown_name('label', str(label), names)}")
        return int(result)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceForm(Form):
    """Base of the forms whose records are one sequence each: columns `[tokens]`, `input_ids` first, and targets `[1]`.

    Examples hold the columns padded to one length, an `attention_mask` that is 0 at padding, and the targets.

    Attributes:
        length: greatest number of tokens of an example; longer ones are cut.
    """

    columns: ClassVar[tuple[str, ...]] = ("input_ids", "token_type_ids")
    targets: ClassVar[tuple[str, ...]] = ("labels",)

    length: Size = 128

    def examples(self, tokenizer: Tokenizer, records: Records, sizes: np.ndarray, split: Split) -> Padded:
        pad = functools.partial(self.pad, padding_id=tokenizer.padding_id)
        return Padded.rounded(records, sizes, self.limit, pad)

    def pad(self, record: Record, length: int, padding_id: int) -> dict[str, np.ndarray]:
        return pad_sequence(record, length, columns=self.columns, targets=self.targets, padding_id=padding_id)


def text(row: Row, name: str) -> str:
    """Return a field of a row that must be text."""
    value = row.values[name]
    if not isinstance(value, str) or not value.strip():
        reason = "blank; fill the cell, or delete the row" if isinstance(value, str) else repr(value)
        raise DataError(f"{row.place}: {row.columns.get(name, name)} is {reason}")
    return value


def text_counts(texts: Sequence[str], tokens: int) -> dict[str, int]:
    """Return the numbers of words and bytes of texts, and of the tokens they were encoded as."""
    words, size = sum(len(text.split()) for text in texts), sum(len(text.encode()) for text in texts)
    return {"tokens": tokens, "words": words, "bytes": size}


class Stored(NamedTuple):
    """The records of a split, in memory or on disk, with their numbers of tokens."""

    records: Records
    sizes: np.ndarray
    counts: Mapping[str, Any]


def load_rows(
    form: Form,
    rows: Mapping[Split, Sequence[Row]],
    tokenizer: Tokenizer | None,
    info: Mapping[str, Any],
    metrics: Sequence[str] = (),
    seed: Seed = (0,),
) -> TaskData:
    """Encode rows in memory and return them as a task's data."""
    known = checked(form, tokenizer)
    splits: dict[Split, Stored] = {}
    label = ""
    for split, some in rows.items():
        records, counts = form.encode(known, some, split, seed)
        if some and not len(records):
            raise DataError(form.nothing(split, counts, some[0].place))
        splits[split] = Stored(records, record_sizes(form, records), totals([(len(records), counts)]))
        label = next((row.columns["label"] for row in some if "label" in row.columns), label)
    data = data_hash(form, tokenizer, seed, fingerprint(rows.get("train", ())))
    return task_data(form, tokenizer, splits, {"data": data, **info}, metrics, label=label)


def checked(form: Form, tokenizer: Tokenizer | None) -> Tokenizer:
    """Return the tokenizer if it suits a form; None for a form without text."""
    if form.reads_text:
        if tokenizer is None:
            raise DataError("tokenizer: text needs one")
        form.check(tokenizer)
    return cast(Tokenizer, tokenizer)


def data_hash(form: Form, tokenizer: Tokenizer | None, seed: Any, rows: Any) -> str:
    """Return the hash of everything that examples depend on, which checkpoints hold."""
    parts = [to_data(form), tokenizer.fingerprint if tokenizer else "", seed, rows]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def task_data(
    form: Form,
    tokenizer: Tokenizer | None,
    splits: Mapping[Split, Stored],
    info: Mapping[str, Any],
    metrics: Sequence[str] = (),
    label: str = "",
) -> TaskData:
    """Return records, wherever they are stored, as a task's data; `label` is the column of the labels of a table."""
    missing = {split: stored.counts[MISSING] for split, stored in splits.items() if MISSING in stored.counts}
    if missing:
        some = (f"{count:,} of {count + len(splits[split].records):,} in {split}" for split, count in missing.items())
        where = f" in the column {label}" if label else ""
        text = f"rows without a label{where} (blank, null, - or -1) are left out, {', '.join(some)}"
        warnings.warn(f"{info.get('text', info.get('task', ''))}: {text}", UserWarning, stacklevel=2)
    known = cast(Tokenizer, tokenizer)
    sources: dict[Split, ExampleSource] = {
        split: form.examples(known, stored.records, stored.sizes, split) if len(stored.records) else ()
        for split, stored in splits.items()
    }
    described: dict[str, Any] = {**info, **{split: dict(stored.counts) for split, stored in splits.items()}}
    described |= {"tokenizer": tokenizer.fingerprint} if tokenizer is not None else {}
    described |= {"labels": [*form.label_names]} if form.label_names else {}
    if protocol := form.protocol(known, splits["validation"].counts):
        described["protocol"] = protocol
    validation = sources["validation"]
    measured = form.measured(metrics, splits["validation"].counts, validation)
    return TaskData(tokenizer, sources.get("train", ()), validation, described, measured)


def record_sizes(form: Form, records: Records) -> np.ndarray:
    """Return the numbers of tokens, int32 `[records]`."""
    return np.asarray([form.tokens(record) for record in each(records)], np.int32)


def totals(parts: Iterable[tuple[int, Mapping[str, int]]]) -> dict[str, Any]:
    """Return the sums of examples and counts, with words and bytes per token where they are known."""
    total: dict[str, Any] = {"examples": 0}
    for examples, counts in parts:
        for name, count in {"examples": examples, **counts}.items():
            total[name] = total.get(name, 0) + count
    for name in ("words", "bytes"):
        if name in total and total.get("tokens"):
            total[f"{name}_per_token"] = total[name] / total["tokens"]
    return total
