"""Tasks as they are named: `NAME`, `NAME:PATH`, or a path alone, whose form is recognised by its files and columns."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from headjax.core.class_names import is_missing
from headjax.core.errors import DataError
from headjax.core.fields import unknown_name
from headjax.data.files import find_files, suffix_of
from headjax.data.forms import TranslationForm
from headjax.data.image_rows import is_image_folder
from headjax.data.registry import PAIR_COLUMNS, TASKS, of_languages
from headjax.data.spec import TaskSpec
from headjax.data.tables import has_lists, header, is_table, table_rows
from headjax.data.text_rows import CONLL
from headjax.storage.files import read_lines
from headjax.storage.hub import source_of


class Named(NamedTuple):
    """A task, and the path of its files; empty to look for them."""

    spec: TaskSpec
    path: str


def named_task(task: str, *, by_labels: bool = True) -> Named:
    """Return the task that is named, or that a path's form is of; `translation:PATH:SOURCE-TARGET` names languages.

    Without `by_labels` the rows of a table are not read; one of labelled texts, or of texts alone, is a classification.
    """
    name, _, path = task.partition(":")
    if name == "translation" and path:
        place, _, languages = path.rpartition(":")
        source, _, target = languages.partition("-")
        if not place or not source or not target or source == target:
            raise DataError(f"task: expected translation:PATH:SOURCE-TARGET (data/newstest:de-en), got {task!r}")
        return Named(of_languages(TASKS[name], source, target), place)
    if name == "sentence_similarity" and path and is_table(path):
        return Named(TASKS["similarity"], path)
    if name in TASKS:
        return Named(TASKS[name], path)
    check_task(task)
    return Named(TASKS[recognise(task, by_labels=by_labels)], task)


def check_task(task: str) -> None:
    """Check that a task is known by its name, or that its path leads somewhere; no file is read."""
    name, _, path = task.partition(":")
    if name == "wikitext2" or (name in TASKS and isinstance(TASKS[name].form, TranslationForm)):
        return  # arguments or languages follow their paths
    place = path if name in (*TASKS, "all", "heldout") else task
    if not place or source_of(place).exists() or glob.has_magic(place) or glob.glob(f"{glob.escape(place)}.*"):
        return  # a path may be what several files begin with: `train` of `train.en` and `train.de`
    if place != task or "/" in task or Path(task).suffix:
        raise DataError(f"{place}: no such file or folder")
    raise DataError(f"task: {unknown_name('task or file', task, TASKS)}")


def recognise(path: str, *, by_labels: bool = True) -> str:
    """Return the name of the form of a file, of a folder or of a pattern's files."""
    place = source_of(path)
    if place.is_dir() and is_image_folder(place):
        return "images"
    file = first_file(path)
    if suffix_of(file) in CONLL:
        return "tokens"
    if suffix_of(file) == ".json" and next(read_lines(file)).lstrip().startswith("{"):
        return "questions"
    return _table_form(file, by_labels) if is_table(file) else "text"


def first_file(path: str) -> Path:
    """Return the first table below a folder, or its first file without one; the first file of another path."""
    files = find_files(path, ("",))
    return next(filter(is_table, files), files[0]) if source_of(path).is_dir() else files[0]


def _table_form(file: Path, by_labels: bool) -> str:
    names = {*header(file)}
    for name in ("tokens", "retrieval", "translation"):
        spec = TASKS[name]
        if {spec.column(field, names) for field in spec.form.wanted} <= names:
            return name
    if not by_labels:
        return "classification"
    columns = table_columns(file)
    return labelled_form(file, columns) if "label" in columns else "text"


def labelled_form(
    file: str | Path,
    columns: Mapping[str, str],
    *,
    several: bool = False,
    embeds: bool = True,
    numbers: bool | None = None,
) -> str:
    """Return the form of a table of labelled texts or pairs, by its labels and what a model gives for them.

    * Lists of labels, or any for a model of several labels, are `multi_label`.
    * Pairs with a `score`, or with labels with a decimal point, are `similarity` for models that embed sentences.
    * Labels for a model of `numbers` are a `regression`; None for those with a decimal point.
    * Else labels are classes.
    """
    label, pairs = columns["label"], "second" in columns
    if several or has_lists(file, label):
        return "multi_label"
    found = {row.values["label"] for row in table_rows(file, {"label": label})}
    known = [one for one in found if not is_missing(one, numbers=True)]
    real = any("." in one for one in known) and all(map(_is_number, known))
    if any("," in one for one in known) and all(_is_number(one.replace(",", ".")) for one in known):
        raise DataError(f"{file}: {label}: labels have decimal commas, such as {max(known, key=len)!r}; write points")
    if embeds and pairs and (real or label == "score"):
        return "similarity"
    if numbers or (numbers is None and real):
        return "regression"
    return "pairs" if pairs else "classification"


def _is_number(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True


def table_columns(path: str | Path) -> dict[str, str]:
    """Return the columns of a table of labelled text by field: `text`, `second` of pairs, `label` if there is one."""
    names = header(path)
    found = known_columns(names, PAIR_COLUMNS)
    if "text" not in found:
        raise DataError(
            f"{path}: expected columns sentence, maybe sentence2, and label; it has {', '.join(names[:8])}; "
            "rename them, or say --columns TEXT,LABEL where a command takes it"
        )
    return found


def known_columns(names: tuple[str, ...], known: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return for every field the first of its known columns that a table has; nothing for a field without any.

    Neither case nor blanks around a name count.
    """
    there = {name.strip().casefold(): name for name in reversed(names)}
    found = {field: next((there[one] for one in columns if one in there), "") for field, columns in known.items()}
    return {field: column for field, column in found.items() if column}
