"""Rows of a task from the user's own files, in the formats that its specification reads."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headjax.core.errors import DataError
from headjax.data.documents import Document, HeldOut, read_documents
from headjax.data.files import find_files, search, visible
from headjax.data.image_rows import cifar_rows, find_cifar, folder_rows, is_mnist, mnist_rows
from headjax.data.labelled_text import LabelledText, TextClassification, TextRegression
from headjax.data.rows import Row, Rows, RowSource, Split, hold_out
from headjax.data.tables import SUFFIXES, header, table_rows
from headjax.data.task_spec import FileLayout, TaskSpec
from headjax.data.text_rows import TFRECORD, read_questions, read_tfrecord, text_lines, translation_pairs

ROW_SUFFIXES = (*SUFFIXES, TFRECORD)
"""Suffixes of files of rows."""

TABLES = tuple(suffix for suffix in ROW_SUFFIXES if suffix != ".txt")
TEXTS = (".txt", ".md", ".tokens", ".raw")

HELD_OUT = 0.05
"""Approximate share of the rows held out if no file is named for validation."""

TRAIN, VALIDATION = frozenset({"train"}), frozenset({"validation", "valid", "val", "dev"})
"""Words in file names that assign a file to a split."""


def local_rows(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Return the rows of tables and TFRecords with the task's fields (`TaskSpec.column`).

    A file or folder belongs to the split whose word (`TRAIN`, `VALIDATION`) is in its name. Without a file for
    validation, some rows are held out by the hash of their text. All files of a task without training data are
    evaluated on.
    """
    return rows_of(spec, split_files(paths, ROW_SUFFIXES), functools.partial(read_rows, spec))


def rows_of(spec: TaskSpec, files: Mapping[Split, Sequence[Path]], read: Callable[[Path], Iterable[Row]]) -> Rows:
    """Return the rows of files, which are read again for each iteration."""

    def rows(splits: Sequence[Split]) -> Iterator[Row]:
        return itertools.chain.from_iterable(read(file) for split in splits for file in files[split])

    if spec.only_evaluated:
        return {"validation": RowSource(lambda: rows(["train", "validation"]))}
    if not files["validation"]:
        return hold_out(lambda: rows(["train"]), spec.form.divided_by, HELD_OUT, str(files["train"][0]))
    splits: list[Split] = ["train", "validation"] if files["train"] else ["validation"]
    return {split: RowSource(functools.partial(rows, [split])) for split in splits}


def split_files(paths: Sequence[Path], suffixes: Iterable[str]) -> dict[Split, list[Path]]:
    """Return the files of the paths that have one of the suffixes (also with `.gz`), by split.

    A folder's name counts for the files below it, also that of a path beside other paths. A file that several paths
    stand for is read once. Files whose names name no split are for training, unless other files are named `train`. A
    single file of any name is for training. Files named `test` are left out if there are others.
    """
    wanted, seen = tuple(suffixes), set[Path]()
    named: dict[Split, list[Path]] = {"train": [], "validation": []}
    others: list[Path] = []
    tests: list[Path] = []
    for path in paths:
        inside = sorted(visible(path)) if path.is_dir() else find_files(path)
        for file in (file for file in inside if file not in seen and file.is_file() and has_suffix(file, wanted)):
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


def has_suffix(file: Path, suffixes: tuple[str, ...]) -> bool:
    """Return whether a file's name ends in one of the suffixes, or in one with `.gz`; TFRecords may be numbered."""
    name = re.sub(r"(\.tfrecord)[-.]\d+-of-\d+$", r"\1", file.name.removesuffix(".gz"))
    return name.endswith(suffixes)


def read_rows(spec: TaskSpec, file: Path) -> Iterator[Row]:
    """Yield the rows of one table or TFRecord."""
    fields = spec.form.wanted
    if has_suffix(file, (TFRECORD,)):
        yield from read_tfrecord(file, fields, spec.column)
        return
    names = header(file)
    for row in table_rows(file, {field: spec.column(field, names) for field in fields}):
        yield Row(row.place, {name: _cell(value, fields[name], row.place) for name, value in row.values.items()})


def _cell(value: str, what: str, place: str) -> Any:
    if what == "image":
        raise DataError(f"{place}: a table holds no images; give a folder of them, or TFRecords")
    if what == "label" and value.isdecimal():
        return int(value)
    return value


def local_sentences(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Return the lines of text files as rows, or the rows of tables and TFRecords with a column `text`."""
    if any(has_suffix(path, TABLES) for path in _inside(paths)):
        return local_rows(spec, paths)
    return rows_of(spec, split_files(paths, TEXTS), text_lines)


def local_documents(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Return the documents of text files as rows, or the rows of tables and TFRecords with a column `text`.

    Without a file for validation, `headjax.data.documents.HeldOut` holds some of the text out.
    """
    if any(has_suffix(path, TABLES) for path in _inside(paths)):
        return local_rows(spec, paths)
    files = split_files(paths, TEXTS)
    read: dict[Split, Callable[[], Iterator[Document]]] = {
        split: functools.partial(_documents, found) for split, found in files.items() if found
    }
    if "validation" not in read:
        parts = HeldOut(read["train"], HELD_OUT)
        read = {"train": parts.train, "validation": parts.validation}
    return {split: RowSource(functools.partial(_rows, found)) for split, found in read.items()}


def _documents(files: Sequence[Path]) -> Iterator[Document]:
    return itertools.chain.from_iterable(map(read_documents, files))


def _rows(read: Callable[[], Iterator[Document]]) -> Iterator[Row]:
    return (Row(document.name, {"text": document.text}) for document in read())


def _inside(paths: Sequence[Path]) -> Iterable[Path]:
    return itertools.chain.from_iterable(visible(path) if path.is_dir() else [path] for path in paths)


def local_squad(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Return the rows of files in SQuAD's format, or of TFRecords of the fields.

    Files are assigned to splits by name, see `split_files`; if none is for validation, all those not named `train` are.
    """
    try:
        files = split_files(paths, (".json", ".json.gz"))
    except DataError:
        split_files(paths, (TFRECORD,))
        return local_rows(spec, paths)
    if not files["validation"]:
        train = [file for file in files["train"] if "train" in file.name]
        files = {"train": train, "validation": [file for file in files["train"] if file not in train]}
    if not files["validation"]:
        raise DataError(f"{paths[0]}: no file to evaluate on (dev-v1.1.json)")
    return {
        split: RowSource.of([row for file in found for row in read_questions(file)])
        for split, found in files.items()
        if found
    }


def local_pairs(source: str, target: str, spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Return the rows of line-aligned files `NAME.source` and `NAME.target`, or of tables of both fields."""
    given = [path for path in paths if not path.is_dir()]
    if given and all(has_suffix(path, ROW_SUFFIXES) for path in given):
        return local_rows(spec, paths)
    named = [path.parent / f"{path.name}.{source}{suffix}" for path in given for suffix in ("", ".gz")]
    asked = [path for path in paths if path.is_dir()] + [path for path in named if path.is_file()]
    files = split_files(asked or paths, (f".{source}",))
    return rows_of(spec, files, functools.partial(_pairs, source, target))


def _pairs(source: str, target: str, file: Path) -> Iterator[Row]:
    return translation_pairs(str(file).removesuffix(".gz").removesuffix(f".{source}"), source, target)


def local_glue(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Return the rows of the task's own files in one of its layouts, or of tables and TFRecords of its fields."""
    try:
        table = labelled_table(spec, layout_fields(spec, str(paths[0])))
    except DataError:
        return local_rows(spec, paths)
    if {*spec.form.wanted} <= {*header(find_files(table.path)[0])}:
        return local_rows(spec, paths)
    return {split: RowSource.of(rows) for split, rows in table.numbered(table.read(spec.rules)).items()}


def labelled_table(spec: TaskSpec, fields: Mapping[str, Any]) -> LabelledText:
    """Return a task's own tables as data, from their `layout_fields` and maybe others."""
    if not spec.labels:
        return TextRegression(**fields)
    return TextClassification(**fields, classes=spec.labels, names=spec.form.label_names)


def layout_fields(spec: TaskSpec, path: str) -> dict[str, Any]:
    """Return the files and columns of a task's own tables, as fields of `LabelledText`."""
    folder, layout = _find_layout(spec, path)
    return {
        "path": str(folder / layout.train),
        "validation": str(folder / layout.validation) if layout.validation else "",
        "validation_fraction": 0.2,
        "text": layout.text,
        "second": layout.second,
        "label": layout.label,
    }


def _find_layout(spec: TaskSpec, path: str) -> tuple[Path, FileLayout]:
    def find(folder: Path) -> tuple[Path, FileLayout] | None:
        for layout in spec.layouts:
            if all(_exists(folder, name) for name in (layout.train, layout.validation) if name):
                return folder, layout
        return None

    wanted = " or ".join(" and ".join(filter(None, layout[:2])) for layout in spec.layouts)
    return search(spec.name, path, spec.folders, find, wanted)


def _exists(folder: Path, pattern: str) -> bool:
    try:
        return bool(find_files(folder / pattern))
    except DataError:
        return False


def local_images(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Return the rows of folders of images by class (`folder_rows`), or of TFRecords of encoded images."""
    root = paths[0]
    if any(has_suffix(path, (TFRECORD,)) for path in _inside([root])):
        return local_rows(spec, paths)
    found = folder_rows(root)
    wanted = len(spec.form.label_names)
    if len(found.classes) != wanted:
        raise DataError(f"{root}: {len(found.classes)} folders of images, but {spec.name} has {wanted} classes")
    return found.rows


def local_cifar(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Return the rows of CIFAR's binary files, binary or of the Python version, or see `local_images`."""
    if not (paths[0].is_dir() and find_cifar(paths[0]) == spec.name):
        return local_images(spec, paths)
    return cifar_rows(paths[0], spec.name).rows


def local_mnist(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Return the rows of MNIST's own files, or see `local_images`."""
    root = paths[0]
    return mnist_rows(root).rows if root.is_dir() and is_mnist(root) else local_images(spec, paths)
