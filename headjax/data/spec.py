"""The record of a task, and the rows of its files: the split of each file, its reader, and the rows held out."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from headjax.core.errors import DataError
from headjax.core.programs import Share
from headjax.data.files import find_files, has_suffix, packed_or_plain, visible
from headjax.data.forms import Form, TranslationForm
from headjax.data.rows import Row, Rows, RowSource, Split, hold_out, hold_out_text
from headjax.data.tables import SUFFIXES, find_column, header, is_table, table_rows

# Approximate share of the rows held out if no file is for validation: of known tasks and texts, of one's own rows, and
# of GLUE's own files.
HELD_OUT, OWN_HELD_OUT, LAYOUT_HELD_OUT = 0.05, 0.1, 0.2


@dataclasses.dataclass(frozen=True)
class TfdsSource:
    """A data set of TensorFlow Datasets."""

    name: str
    splits: Mapping[Split, str]
    fields: Mapping[str, str]


class FileLayout(NamedTuple):
    """Names of a task's files in one of its distributions, and column numbers of tables without a header."""

    train: str
    validation: str
    columns: tuple[str, ...] = ()


class Recipe(NamedTuple):
    """Hyperparameters of a paper's training on a task; 0 is a value that the paper does not give."""

    paper: str  # its first author and year
    batch_size: int  # examples of a step; of packed text as many as hold the paper's tokens
    learning_rates: tuple[float, ...]  # peaks, of which the paper takes the best on the development set
    length: int = 0  # greatest number of tokens of an example
    warmup_steps: int = 0
    epochs: int = 0
    steps: int = 0


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """A task: the form that encodes its rows, its files, its data sets in TFDS, its metrics and papers' settings."""

    name: str
    form: Form
    own: bool = False  # for the user's own files, whose tables may have a column of second texts
    learns_classes: bool = False  # its classes are the labels that the user's files have
    suffixes: tuple[str, ...] = ()  # of its files that are not tables
    read: Callable[[Path], Iterable[Row]] | None = None  # reads one of these files
    # Reads what follows the name, `PATH,context=1024`, and returns the task and the path.
    arguments: Callable[[TaskSpec, str], tuple[TaskSpec, str]] | None = None
    documents: bool = False  # pieces of the text are held out, rather than rows
    files: str = ""  # in words
    folders: tuple[str, ...] = ()  # under HEADJAX_DATA
    layouts: tuple[FileLayout, ...] = ()
    columns: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)  # by field, besides its own name
    sources: tuple[TfdsSource, ...] = ()
    vocabulary: Literal["given", "bpe", "none"] = "given"  # by the model; learned; none for images
    vocab_size: int = 0  # of a learned one
    metrics: tuple[str, ...] = ()  # the primary metric first; empty for the usual ones of the form
    held_out: float = HELD_OUT  # share of the rows where no file is for validation
    examples: int = 0  # to train on, by which the papers count epochs
    recipes: tuple[Recipe, ...] = ()  # of a paper that trains in stages, one after the other

    def recipe(self, paper: str, stage: int = 1) -> Recipe:
        return [recipe for recipe in self.recipes if recipe.paper == paper][stage - 1]

    def column(self, field: str, there: Collection[str]) -> str:
        """Return the name of a field's column among those of a table; a number, or the usual name, if none is there."""
        known = self.columns.get(field, ())
        names = (*(() if field in known else (field,)), *known, *(one.fields.get(field, field) for one in self.sources))
        usual = known[0] if len(known) == 1 else field
        return find_column(names, there) or next(filter(str.isdecimal, names), usual)

    def located(self, path: Path) -> Path:
        """Return a path, or the file with the task's suffix that it stands for: `train.en` of `train`."""
        if isinstance(self.form, TranslationForm) and self.suffixes and not path.exists():
            return packed_or_plain(path.with_name(f"{path.name}{self.suffixes[0]}")) or path
        return path


SPLIT_WORDS = {"validation": {"validation", "valid", "val", "dev"}, "train": {"train"}, "test": {"test"}}
"""Words in the names of files and folders that assign a file to a split."""


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

    Without paths for `validation`, the split of a file is the one in its name. If no file is for validation, about a
    `fraction` of the rows (0: the task's own share) is held out by the hash of their text. A folder may have the names
    of the task's `layouts`. All rows of a `whole` task, and of one without training data, are evaluated on. Columns of
    tables that `columns` does not name go by their usual names.
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
    if spec.sources and not any("train" in source.splits for source in spec.sources):
        return {"validation": RowSource(functools.partial(read, [*files.train, *files.validation]))}
    if files.validation:
        by_split: dict[Split, Sequence[Path]] = {"train": files.train, "validation": files.validation}
        return {split: RowSource(functools.partial(read, some)) for split, some in by_split.items() if some}
    read_train, fraction = functools.partial(read, files.train), fraction or spec.held_out
    if spec.documents and not is_table(files.train[0]):
        return hold_out_text(read_train, fraction)
    field = spec.form.divided_by or next(iter(spec.form.fields))
    return hold_out(read_train, field, fraction, str(files.train[0]))


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
        values, names = dict(row.values), spec.form.label_names
        for field, what in fields.items():
            if what == "image":
                raise DataError(f"{row.place}: a table holds no images; give a folder of them")
            if what == "integer":
                values[field] = int(values[field])
            elif what == "label" and values[field].isdecimal() and int(values[field]) < len(names):
                values[field] = names[int(values[field])]
        yield row._replace(values=values)


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
            split = next((split for split, known in SPLIT_WORDS.items() if words & known), "other")
            named["other" if len(paths) == 1 and file == path else split].append(file)
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
