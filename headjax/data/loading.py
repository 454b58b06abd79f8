"""From a form and its rows to the data that a run reads: rows are encoded in memory, or one by one when read."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from headjax.core.errors import DataError
from headjax.core.serialize import to_data
from headjax.data.examples import Records, Source
from headjax.data.forms.form import MISSING, Form, Seed
from headjax.data.rows import Row, Split, fingerprint
from headjax.data.task import TaskData
from headjax.tokenizers.tokenizer import Tokenizer


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
    for split, some in rows.items():
        encoded = form.encode(known, some, split, seed)
        if some and not len(encoded.records):
            raise DataError(form.nothing(split, encoded.counts, some[0].place))
        sizes = record_sizes(form, encoded.records)
        splits[split] = Stored(encoded.records, sizes, totals([(len(sizes), encoded.counts)]))
    data = data_hash(form, tokenizer, seed, fingerprint(rows.get("train", ())))
    return task_data(form, tokenizer, splits, {"data": data, **info}, metrics)


def checked(form: Form, tokenizer: Tokenizer | None) -> Tokenizer:
    """Return the tokenizer if it suits a form; None for a form without text."""
    if form.reads_text:
        if tokenizer is None:
            raise DataError("tokenizer: text needs one")
        form.check(tokenizer)
    return cast(Tokenizer, tokenizer)


def data_hash(form: Form, tokenizer: Tokenizer | None, seed: Any, rows: Any) -> str:
    """Return the hash of everything that examples depend on, which checkpoints hold."""
    own = [to_data(form), tokenizer.fingerprint if tokenizer else "", seed, rows]
    return hashlib.sha256(json.dumps(own).encode()).hexdigest()[:16]


def task_data(
    form: Form,
    tokenizer: Tokenizer | None,
    splits: Mapping[Split, Stored],
    info: Mapping[str, Any],
    metrics: Sequence[str] = (),
    threads: int = 0,
) -> TaskData:
    """Return records, wherever they are stored, as a task's data."""
    missing = {split: found.counts[MISSING] for split, found in splits.items() if MISSING in found.counts}
    if missing:
        some = (f"{count:,} of {count + len(splits[split].records):,} in {split}" for split, count in missing.items())
        text = f"rows without a label (blank, null, - or -1) are left out, {', '.join(some)}"
        warnings.warn(f"{info.get('text', info.get('task', ''))}: {text}", UserWarning, stacklevel=2)
    known = cast(Tokenizer, tokenizer)
    sources: dict[Split, Source] = {
        split: form.examples(known, found.records, found.sizes, split) if len(found.records) else ()
        for split, found in splits.items()
    }
    told: dict[str, Any] = {**info, **{split: dict(found.counts) for split, found in splits.items()}}
    if tokenizer is not None:
        told["tokenizer"] = tokenizer.fingerprint
    if form.label_names:
        told["labels"] = list(form.label_names)
    held = sources["validation"]
    measured = form.measured(metrics, splits["validation"].counts, held)
    return TaskData(tokenizer, sources.get("train", ()), held, told, measured, threads)


def record_sizes(form: Form, records: Records) -> np.ndarray:
    """Return the numbers of tokens, int32 `[records]`."""
    return np.asarray([form.tokens(records[index]) for index in range(len(records))], np.int32)


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
