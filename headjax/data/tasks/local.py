"""A task's rows from the user's own files."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headjax.core.errors import DataError
from headjax.data.documents import text_hash
from headjax.data.rows import Rows, RowSource, Split, TaskRow
from headjax.data.tables import READERS, header, table_rows
from headjax.data.tasks.spec import TaskSpec
from headjax.data.text_files import find_files

HELD_OUT = 0.05
"""Share of the rows that is held out, about, where no file is named for validation."""

TRAIN, VALIDATION = frozenset({"train"}), frozenset({"validation", "valid", "val", "dev"})
"""Parts of file names that say which split a file is of."""


def local_rows(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """The rows of tables (TSV, CSV, JSON, JSON lines) and TFRecords with the task's fields (`TaskSpec.column`).

    A file or folder whose name has the word `train`, or one of `VALIDATION`, in it is of that split; with no file for
    validation some rows are held out by the hash of their text. Files of a task that is only evaluated on are all of
    that split.

    Raises:
        DataError: no file, or one that cannot be used.
    """
    return rows_of(spec, split_files(paths, SUFFIXES), functools.partial(read_rows, spec))


def rows_of(spec: TaskSpec, files: Mapping[Split, Sequence[Path]], read: Callable[[Path], Iterable[TaskRow]]) -> Rows:
    """The rows of files, read one after another whenever they are asked for.

    Args:
        spec: the task.
        files: by split; with none for validation some rows are held out.
        read: reads the rows of one file.

    Raises:
        DataError: too few rows for that.
    """

    def rows(splits: Sequence[Split]) -> Iterator[TaskRow]:
        return itertools.chain.from_iterable(read(file) for split in splits for file in files[split])

    def side(held: bool) -> RowSource:
        return RowSource(lambda: (row for row in rows(["train"]) if is_held_out(row) is held))

    if only_evaluated(spec):
        return {"validation": RowSource(lambda: rows(["train", "validation"]))}
    if not files["validation"]:
        _check_both(files["train"][0], rows(["train"]))
        return {"train": side(False), "validation": side(True)}
    splits: list[Split] = ["train", "validation"] if files["train"] else ["validation"]
    return {split: RowSource(functools.partial(rows, [split])) for split in splits}


def is_held_out(row: TaskRow) -> bool:
    """Whether the hash of a row's first text puts it among those that are held out."""
    return text_hash(str(next(iter(row.values.values())))) < HELD_OUT


def _check_both(file: Path, rows: Iterable[TaskRow]) -> None:
    """Reads until there is a row on each side.

    Raises:
        DataError: there is none on one of them.
    """
    seen = {False: 0, True: 0}
    for row in rows:
        seen[is_held_out(row)] += 1
        if all(seen.values()):
            return
    raise DataError(f"{file}: {sum(seen.values())} rows are too few to hold some out; name a file for validation")


def only_evaluated(spec: TaskSpec) -> bool:
    """Whether a task has nothing to train on."""
    return bool(spec.sources) and all("train" not in source.splits for source in spec.sources)


def split_files(paths: Sequence[Path], suffixes: Iterable[str]) -> dict[Split, list[Path]]:
    """The files with one of the suffixes (also with `.gz`) that paths stand for, by split.

    Files whose names say nothing of a split are of `train`, unless others are called so; so is a file that is the only
    path, whatever it is called. Files called `test` are left out where there are others.

    Raises:
        DataError: there is none.
    """
    wanted = tuple(suffixes)
    named: dict[Split, list[Path]] = {"train": [], "validation": []}
    others: list[Path] = []
    tests: list[Path] = []
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
                (tests if "test" in words else others).append(file)
    if not named["train"]:
        named["train"] = others or ([] if named["validation"] else tests)
    if not any(named.values()):
        raise DataError(f"{paths[0]}: no file whose name ends in {', '.join(wanted)}")
    return named


def has_suffix(file: Path, suffixes: tuple[str, ...]) -> bool:
    """Whether a file's name ends in one of the suffixes, maybe packed; TFRecords may be numbered after theirs."""
    name = re.sub(r"(\.tfrecord)[-.]\d+-of-\d+$", r"\1", file.name.removesuffix(".gz"))
    return name.endswith(suffixes)


def read_rows(spec: TaskSpec, file: Path) -> Iterator[TaskRow]:
    """The rows of one table or TFRecord, one after another.

    Raises:
        DataError: a file that cannot be used; the message starts with it and names the line.
    """
    fields = spec.form.wanted
    if has_suffix(file, (TFRECORD,)):
        from headjax.data.tasks.tfrecord import read_tfrecord

        yield from read_tfrecord(file, fields, spec.column)
        return
    names = header(file)
    for row in table_rows(file, [spec.column(field, names) for field in fields]):
        named = zip(fields.items(), row.values, strict=True)
        yield TaskRow(row.place, {name: _value(value, what, row.place) for (name, what), value in named})


def _value(value: str, what: str, place: str) -> Any:
    if what == "image":
        raise DataError(f"{place}: a table holds no images; give a folder of them, or TFRecords")
    if what == "label" and value.isdecimal():
        return int(value)
    return value


TFRECORD = ".tfrecord"
SUFFIXES = (*READERS, TFRECORD)
