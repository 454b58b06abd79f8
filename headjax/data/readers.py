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
from headjax.data.files import find_files, has_suffix, visible
from headjax.data.rows import Row, Rows, RowSource, Split, hold_out, hold_out_text
from headjax.data.spec import TaskSpec
from headjax.data.tables import SUFFIXES, header, is_table, table_rows

VALIDATION = {"validation", "valid", "val", "dev"}
"""Words in file names that assign a file to the validation split, as `train` does to the other."""

LAYOUT_HELD_OUT = 0.2
"""Approximate share of the rows of GLUE's own files that is held out where no file is for validation."""


class Files(NamedTuple):
    """The files of a task by split, and the columns of tables by field, as far as they are known."""

    train: Sequence[Path]
    validation: Sequence[Path]
    columns: Mapping[str, str] = {}


def task_rows(
    spec: TaskSpec,
    train: Sequence[Path],
    validation: Sequence[Path] = (),
    *,
    columns: Mapping[str, str] = {},
    fraction: float = 0.0,
    whole: bool = False,
) -> Rows:
    """Return the rows of a task's files, which are read again for each iteration.

    With files for validation, or none to train on, all paths are of their split. Otherwise a file belongs to the split
    whose word is in its name; without a file for validation some rows are held out by the hash of their text, a
    `fraction` of them, or the task's own. All files of a task without training data are evaluated on. Columns of
    tables that are not given are found by name. GLUE's tasks may have one folder of their own files. Of a `whole` task
    all rows are evaluated on, of a folder of its own files those for validation.
    """
    files = find_layout(spec, train[0]) if len(train) == 1 and not validation else None
    if spec.documents and spec.layouts:  # the protocol of a task of text names its files
        layout, there = spec.layouts[0], files or Files((), ())
        for name, some in ((layout.validation, there.validation), (layout.train, there.train or whole)):
            if not some:
                raise DataError(f"{train[0]}: not a folder of {spec.name}: expected {name}")
    train, validation = ((), train) if whole else (train, validation)
    if files is not None:
        files = files._replace(train=()) if whole else files
        columns, fraction = files.columns or columns, fraction or LAYOUT_HELD_OUT
    else:
        suffixes = suffixes_of(spec, [*train, *validation])
        each = ([file for path in paths for file in find_files(path, suffixes)] for paths in (train, validation))
        files = Files(next(each), next(each)) if validation or not train else split_files(train, suffixes)
    read = functools.partial(_shared, read=functools.partial(read_file, spec, columns=columns))
    everything = [*files.train, *files.validation]
    if spec.sources and not any("train" in source.splits for source in spec.sources):
        return {"validation": RowSource(functools.partial(read, everything))}
    if files.validation:
        by_split: dict[Split, Sequence[Path]] = {"train": files.train, "validation": files.validation}
        return {split: RowSource(functools.partial(read, some)) for split, some in by_split.items() if some}
    first, fraction = everything[0], fraction or spec.held_out
    if spec.documents and not is_table(first):
        return hold_out_text(functools.partial(read, files.train), fraction)
    return hold_out(functools.partial(read, files.train), spec.form.divided_by, fraction, str(first))


def _shared(files: Sequence[Path], share: Share, read: Callable[[Path], Iterable[Row]]) -> Iterator[Row]:
    """Yield a share of the rows of files: all rows of every n-th file; every n-th row if there are too few files."""
    if len(files) >= share.count:
        return itertools.chain.from_iterable(map(read, files[share.index :: share.count]))
    return itertools.islice(itertools.chain.from_iterable(map(read, files)), share.index, None, share.count)


def read_file(spec: TaskSpec, file: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the rows of one file: a table, or one that the task's own reader reads."""
    if spec.read is not None and (has_suffix(file, spec.suffixes) or not is_table(file)):
        yield from spec.read(file)
        return
    fields = spec.form.wanted
    names = () if {*columns} >= {*fields} else header(file)
    columns_of_fields = {field: columns.get(field) or spec.column(field, names) for field in fields}
    lists = [field for field, what in fields.items() if what == "texts"]
    for row in table_rows(file, columns_of_fields, lists=lists):
        values = {name: _value(spec, value, fields[name], row.place) for name, value in row.values.items()}
        yield row._replace(values=values)


def _value(spec: TaskSpec, value: Any, what: str, place: str) -> Any:
    """Return a cell as its field has it; numbers of a known task's classes become their names."""
    if what == "image":
        raise DataError(f"{place}: a table holds no images; give a folder of them")
    names = spec.form.label_names
    if what == "label" and value.isdecimal() and int(value) < len(names):
        return names[int(value)]
    return int(value) if what == "integer" else value


def split_files(paths: Sequence[Path], suffixes: tuple[str, ...]) -> Files:
    """Return the files of the paths by split, of folders those that have one of the suffixes (also with `.gz`).

    A folder's name counts for the files below it, also that of a path beside other paths. A file that several paths
    stand for is read once. Files whose names name no split are for training, unless other files are named `train`. A
    single file of any name is for training. Files named `test` are left out if there are others.
    """
    seen = set[Path]()
    named: dict[str, list[Path]] = {"train": [], "validation": [], "other": [], "test": []}
    for path in paths:
        for file in (file for file in find_files(path, suffixes) if file not in seen):
            seen.add(file)
            folders: list[str] = []
            if file != path and path.is_dir():
                folders = [*file.relative_to(path).parts[:-1], *([path.name] if len(paths) > 1 else [])]
            words = {*re.split(r"[^a-z0-9]+", file.name.lower()), *(name.lower() for name in folders)}
            split = (
                "validation" if words & VALIDATION else next((word for word in ("train", "test") if word in words), "")
            )
            named["other" if not split or (len(paths) == 1 and file == path) else split].append(file)
    train = named["train"] or named["other"] or ([] if named["validation"] else named["test"])
    return Files(train, named["validation"])


def suffixes_of(spec: TaskSpec, paths: Sequence[Path]) -> tuple[str, ...]:
    """Return the suffixes of the files to read: tables if there are any, or those of the task's own files."""
    if spec.read is None:
        return SUFFIXES
    tables = tuple(suffix for suffix in SUFFIXES if suffix not in (".txt", *spec.suffixes))
    inside = itertools.chain.from_iterable(visible(path) if path.is_dir() else [path] for path in paths)
    return tables if any(has_suffix(path, tables) for path in inside) else spec.suffixes


def find_layout(spec: TaskSpec, folder: Path) -> Files | None:
    """Return a task's own files in a folder in the first of its layouts; None if none is there."""
    for layout in spec.layouts if folder.is_dir() else ():
        groups = ({*folder.glob(name)} if name else set() for name in layout[:2])
        train, validation = (  # without packed files whose unpacked file is there too
            sorted(file for file in group if file.suffix != ".gz" or file.with_suffix("") not in group)
            for group in groups
        )
        if train or validation:
            fields = [*spec.form.wanted]
            named = not layout.columns or {*fields} <= {*header([*train, *validation][0])}
            return Files(train, validation, {} if named else dict(zip(fields, layout.columns, strict=True)))
    return None
