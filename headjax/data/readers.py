"""Rows of a task from files: which of them are for which split, how each is read, and which rows are held out."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headjax.core.errors import DataError
from headjax.core.share import Share
from headjax.data.documents import Document, HeldOut
from headjax.data.files import find_files, visible
from headjax.data.rows import Row, Rows, RowSource, Split, hold_out
from headjax.data.spec import TaskSpec
from headjax.data.tables import SUFFIXES, header, is_table, table_rows
from headjax.data.text_rows import document_row

TABLES = tuple(suffix for suffix in SUFFIXES if suffix != ".txt")
"""Suffixes of the tables of tasks that also read text."""

TRAIN, VALIDATION = frozenset({"train"}), frozenset({"validation", "valid", "val", "dev"})
"""Words in file names that assign a file to a split."""

Files = Mapping[Split, Sequence[Path]]
Read = Callable[[Path], Iterable[Row]]


def task_rows(
    spec: TaskSpec,
    train: Sequence[Path],
    validation: Sequence[Path] = (),
    *,
    columns: Mapping[str, str] | None = None,
    fraction: float = 0.0,
) -> Rows:
    """Return the rows of a task's files, which are read again for each iteration.

    With files for validation, or none to train on, all paths are of their split. Otherwise a file belongs to the split
    whose word (`TRAIN`, `VALIDATION`) is in its name; without a file for validation some rows are held out by the hash
    of their text. All files of a task without training data are evaluated on.

    Args:
        spec: the task.
        train: files or folders; of GLUE's tasks one folder with the task's own files.
        validation: files to evaluate on.
        columns: columns of tables by field; those that it lacks are found by name.
        fraction: share of the rows that is held out; 0 is the task's own.
    """
    found = find_layout(spec, train[0]) if len(train) == 1 and not validation else None
    if found is not None:
        columns, fraction = found.columns, fraction or LAYOUT_HELD_OUT
        files: Files = {"train": found.train, "validation": found.validation}
    elif validation or not train:
        files = {"train": _all_files(spec, train), "validation": _all_files(spec, validation)}
    else:
        files = split_files(train, suffixes_of(spec, train))
    read = functools.partial(read_file, spec, columns=columns or {})
    first = next(file for split in files.values() for file in split)
    if spec.documents and not files["validation"] and not is_table(first):
        return _divided_documents(files["train"], read, fraction or spec.held_out)
    if spec.only_evaluated:
        return {"validation": RowSource(functools.partial(_shared, [*files["train"], *files["validation"]], read))}
    if not files["validation"]:
        whole = functools.partial(_shared, files["train"], read)
        return hold_out(whole, spec.form.divided_by, fraction or spec.held_out, str(first))
    splits: list[Split] = ["train", "validation"] if files["train"] else ["validation"]
    return {split: RowSource(functools.partial(_shared, files[split], read)) for split in splits}


def _shared(files: Sequence[Path], read: Read, share: Share) -> Iterator[Row]:
    """Yield a share of the rows of files: those of every n-th file, or of fewer files than shares every n-th row."""
    if len(files) >= share.count:
        return itertools.chain.from_iterable(map(read, files[share.index :: share.count]))
    return itertools.islice(itertools.chain.from_iterable(map(read, files)), share.index, None, share.count)


def _divided_documents(files: Sequence[Path], read: Read, fraction: float) -> Rows:
    """Return documents of which pieces are held out; the first host alone reads what is held out, from all files."""

    def documents(share: Share) -> Iterator[Document]:
        return (Document(row.place, row.values["text"]) for row in _shared(files, read, share))

    sides = HeldOut(lambda: documents(Share()), fraction)
    return {
        "train": RowSource(lambda share: map(document_row, sides.train(documents(share)))),
        "validation": RowSource(lambda share: () if share.index else map(document_row, sides.validation())),
    }


def read_file(spec: TaskSpec, file: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the rows of one file: a table, or one that the task's own reader reads."""
    if spec.read is not None and (has_suffix(file, spec.suffixes) or not is_table(file)):
        yield from spec.read(file)
        return
    fields = spec.form.wanted
    names = () if {*columns} >= {*fields} else header(file)
    found = {field: columns.get(field) or spec.column(field, names) for field in fields}
    lists = [field for field, what in fields.items() if what == "texts"]
    for row in table_rows(file, found, lists=lists, skips=spec.skips):
        yield Row(row.place, {name: _value(spec, value, fields[name], row.place) for name, value in row.values.items()})


def _value(spec: TaskSpec, value: Any, what: str, place: str) -> Any:
    """Return a cell as its field has it; numbers of a known task's classes become their names."""
    if what == "image":
        raise DataError(f"{place}: a table holds no images; give a folder of them")
    if what == "integer":
        return int(value)
    names = spec.form.label_names
    return names[int(value)] if what == "label" and value.isdecimal() and int(value) < len(names) else value


def split_files(paths: Sequence[Path], suffixes: Iterable[str]) -> dict[Split, list[Path]]:
    """Return the files of the paths by split, of folders those that have one of the suffixes (also with `.gz`).

    A folder's name counts for the files below it, also that of a path beside other paths. A file that several paths
    stand for is read once. Files whose names name no split are for training, unless other files are named `train`. A
    single file of any name is for training. Files named `test` are left out if there are others.
    """
    wanted, seen = tuple(suffixes), set[Path]()
    named: dict[Split, list[Path]] = {"train": [], "validation": []}
    others: list[Path] = []
    tests: list[Path] = []
    for path in paths:
        inside = [one for one in visible(path) if has_suffix(one, wanted)] if path.is_dir() else find_files(path)
        for file in (file for file in sorted(inside) if file not in seen and file.is_file()):
            seen.add(file)
            words = set(re.split(r"[^a-z0-9]+", file.name.lower()))
            if file != path and path.is_dir():
                folders = [*file.relative_to(path).parts[:-1], *([path.name] if len(paths) > 1 else [])]
                words |= {name.lower() for name in folders}
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


def _all_files(spec: TaskSpec, paths: Sequence[Path]) -> list[Path]:
    """Return all files of the paths."""
    found = split_files(paths, suffixes_of(spec, paths)) if any(path.is_dir() for path in paths) else {}
    listed = [file for split in found.values() for file in split]
    return listed or [file for path in paths for file in find_files(path)]


def suffixes_of(spec: TaskSpec, paths: Sequence[Path]) -> tuple[str, ...]:
    """Return the suffixes of the files to read: tables if there are any, or those of the task's own files."""
    if spec.read is None:
        return SUFFIXES
    tables = tuple(suffix for suffix in TABLES if suffix not in spec.suffixes)
    inside = itertools.chain.from_iterable(visible(path) if path.is_dir() else [path] for path in paths)
    return tables if any(has_suffix(path, tables) for path in inside) else spec.suffixes


def has_suffix(file: Path, suffixes: tuple[str, ...]) -> bool:
    """Return whether a file's name ends in one of the suffixes, or in one with `.gz`."""
    return file.name.removesuffix(".gz").endswith(suffixes)


class Layout(NamedTuple):
    """A task's own tables that were found in a folder."""

    train: Sequence[Path]
    validation: Sequence[Path]
    columns: Mapping[str, str]


LAYOUT_HELD_OUT = 0.2
"""Approximate share of the rows of GLUE's own files that is held out where no file is for validation."""


def find_layout(spec: TaskSpec, folder: Path) -> Layout | None:
    """Return a task's own tables in a folder in the first of its layouts; None if none is there.

    Tables that have all the fields' own names are no layout.
    """
    for layout in spec.layouts:
        names = [name for name in (layout.train, layout.validation) if name]
        if folder.is_dir() and all(_matching(folder, name) for name in names):
            train, validation = (_matching(folder, name) for name in (layout.train, layout.validation))
            if spec.read is not None:
                return Layout(train, validation, {})
            if not {*spec.form.wanted} <= {*header(train[0])}:
                return Layout(train, validation, {field: getattr(layout, field) for field in spec.form.wanted})
    return None


def _matching(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern)) if pattern else []
