"""A task's rows from the user's own files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headjax.data.prepared.form import Form, Split
from headjax.data.prepared.labelled import LabelledForm
from headjax.data.prepared.rows import RowSource, TaskRow
from headjax.data.split import text_hash
from headjax.data.tables import READERS, read_table
from headjax.data.tasks.spec import Rows, TaskSpec
from headjax.data.text_files import find_files
from headjax.errors import DataError

HELD_OUT = 0.05
"""Share of the rows that is held out, about, where no file is named for validation."""

TRAIN, VALIDATION = frozenset({"train"}), frozenset({"validation", "valid", "val", "dev"})
"""Parts of file names that say which split a file is of."""


def local_rows(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """The rows of tables (TSV, CSV, JSON, JSON lines) and TFRecords whose columns are the task's fields.

    A file or folder whose name has the word `train`, or one of `VALIDATION`, in it is of that split; with no file for
    validation some rows are held out by the hash of their text. Files of a task that is only evaluated on are all of
    that split.

    Raises:
        DataError: no file, or one that cannot be used.
    """
    files = split_files(paths, SUFFIXES)
    read: dict[Split, list[TaskRow]] = {
        split: [row for file in found for row in read_rows(spec.form, file)] for split, found in files.items()
    }
    return with_validation(spec, paths, read)


def with_validation(spec: TaskSpec, paths: Sequence[Path], read: Mapping[Split, list[TaskRow]]) -> Rows:
    """Rows with some of the training ones held out where there are none for validation.

    Raises:
        DataError: too few rows for that.
    """
    train, held = list(read.get("train", ())), list(read.get("validation", ()))
    if only_evaluated(spec):
        return {"validation": RowSource.of([*train, *held])}
    if not held:
        keys = [text_hash(str(next(iter(row.values.values())))) < HELD_OUT for row in train]
        if all(keys) or not any(keys):
            raise DataError(f"{paths[0]}: {len(train)} rows are too few to hold some out; name a file for validation")
        held = [row for row, out in zip(train, keys, strict=True) if out]
        train = [row for row, out in zip(train, keys, strict=True) if not out]
    found: Rows = {"validation": RowSource.of(held)}
    return {"train": RowSource.of(train), **found} if train else found


def only_evaluated(spec: TaskSpec) -> bool:
    """Whether a task has nothing to train on."""
    return bool(spec.sources) and all("train" not in source.splits for source in spec.sources)


def split_files(paths: Sequence[Path], suffixes: Iterable[str]) -> dict[Split, list[Path]]:
    """The files with one of the suffixes (also with `.gz`) that paths stand for, by split.

    Files whose names say nothing of a split are of `train`, unless others are called so; so is a file that is the only
    path, whatever it is called.

    Raises:
        DataError: there is none.
    """
    wanted = tuple(suffixes)
    named: dict[Split, list[Path]] = {"train": [], "validation": []}
    others: list[Path] = []
    for path in paths:
        inside = sorted(path.rglob("*")) if path.is_dir() else find_files(path)
        for file in (file for file in inside if file.is_file() and has_suffix(file, wanted)):
            words = set(re.split(r"[^a-z0-9]+", file.name.lower()))
            words |= {file.parent.name.lower()} if path.is_dir() and file.parent != path else set()
            if len(paths) == 1 and file == path:
                others.append(file)
            elif words & VALIDATION:
                named["validation"].append(file)
            elif words & TRAIN:
                named["train"].append(file)
            else:
                others.append(file)
    if not named["train"]:
        named["train"] = others
    if not any(named.values()):
        raise DataError(f"{paths[0]}: no file whose name ends in {', '.join(wanted)}")
    return named


def has_suffix(file: Path, suffixes: tuple[str, ...]) -> bool:
    """Whether a file's name ends in one of the suffixes, maybe packed; TFRecords may be numbered after theirs."""
    name = re.sub(r"(\.tfrecord)[-.]\d+-of-\d+$", r"\1", file.name.removesuffix(".gz"))
    return name.endswith(suffixes)


def read_rows(form: Form, file: Path) -> list[TaskRow]:
    """The rows of one table or TFRecord.

    Raises:
        DataError: a file that cannot be used; the message starts with it and names the line.
    """
    fields = wanted_fields(form)
    if has_suffix(file, (TFRECORD,)):
        from headjax.data.tasks.tfrecord import read_tfrecord

        return list(read_tfrecord(file, fields))
    found = []
    for row in read_table(file, list(fields)):
        named = zip(fields.items(), row.values, strict=True)
        found.append(TaskRow(row.place, {name: _value(value, what, row.place) for (name, what), value in named}))
    return found


def wanted_fields(form: Form) -> dict[str, str]:
    """The fields that every row of a form must have, and what they hold."""
    single = isinstance(form, LabelledForm) and not form.pairs
    return {name: what for name, what in form.fields.items() if not (single and name == "second")}


def _value(value: str, what: str, place: str) -> Any:
    if what == "image":
        raise DataError(f"{place}: a table holds no images; give a folder of them, or TFRecords")
    if what == "label" and value.isdecimal():
        return int(value)
    return value


def lines(files: Iterable[Path]) -> Iterator[TaskRow]:
    """Every line of text files that is not blank.

    Raises:
        DataError: a file that cannot be used.
    """
    from headjax.data.text_files import read_text

    for file in files:
        for number, line in enumerate(read_text(file).split("\n"), start=1):
            if line.strip():
                yield TaskRow(f"{file}: line {number}", {"text": line.strip()})


TFRECORD = ".tfrecord"
SUFFIXES = (*READERS, TFRECORD)
