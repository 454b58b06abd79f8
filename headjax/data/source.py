"""The data that a name or a path stands for, alike for every command: its task and form, and a table's columns."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headjax.core.class_names import class_numbers, is_missing
from headjax.core.errors import ColumnsError, DataError, HeadjaxError
from headjax.core.fields import unknown_name
from headjax.core.serialize import kind_of
from headjax.data.files import CONLL, find_files, is_image_folder, suffix_of
from headjax.data.forms import Form, ImageForm, LabelledForm, TranslationForm
from headjax.data.registry import PAIR_COLUMNS, TASKS
from headjax.data.spec import TaskSpec
from headjax.data.store import is_prepared, read_settings
from headjax.data.tables import find_column, has_lists, header, is_number, is_table, names_of_columns, table_rows
from headjax.storage.files import read_lines
from headjax.storage.paths import source_of

if TYPE_CHECKING:
    from headjax.models.config import ModelConfig
    from headjax.models.model import Model


LABELLED: tuple[str, ...] = ("classification", "pairs", "multi_label", "regression", "similarity")
"""Tasks whose files are tables with a label; `pairs` is a classification of pairs of texts."""

TRAINED: Mapping[str, tuple[str, ...]] = {
    "encoder": (*LABELLED, "retrieval", "tokens", "questions"),
    "encoder_decoder": ("translation",),
    "decoder": ("text", *LABELLED),
    "vision": ("images",),
}
"""Tasks that models can be fine-tuned for, by kind of model."""


@dataclasses.dataclass(frozen=True)
class Source:
    """Data that a name or a path stands for, see `resolve`; no row has been encoded."""

    text: str
    task: str  # the text with the name of its form, as `DataConfig.task` takes it
    spec: TaskSpec
    path: str = ""  # empty where the files are looked for under HEADJAX_DATA, come from TFDS or with Python
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)  # of a table, by field
    whole: bool = False  # all rows are evaluated on
    prepared: bool = False  # the path is a folder that `headjax prepare` wrote

    @property
    def form(self) -> Form:
        """How rows are encoded, before lengths and classes are known."""
        return self.spec.form

    @property
    def has_classes(self) -> bool:
        return self.spec.learns_classes or (bool(self.form.label_names) and isinstance(self.form, LabelledForm))

    @property
    def name(self) -> str:
        """Its name in tables: the task's, or the user's files."""
        if self.text.partition(":")[0] in ("all", "heldout", "translation", "images") and self.path:
            return self.path
        one_file = not self.prepared and self.path and source_of(self.path).is_file()
        return self.text if (self.spec.own and not self.prepared) or one_file else self.spec.name


def resolve(
    text: str, model: Model | None = None, *, columns: Mapping[str, str] = {}, whole: bool = False, labels: bool = True
) -> Source:
    """Return what data a name or a path is; a `DataError` if there is no such task or path.

    `text` is `NAME`; `NAME:PATH`; a file, a folder, a pattern or an address (`hf://`, `gs://`), whose form is
    recognised; a folder that `headjax prepare` wrote; `all:FILE`, a whole text; `heldout:FILE`, its held-out part;
    `translation:PATH:SOURCE-TARGET`; `wikitext2:FOLDER,context=1024`. The output of the `model` that reads it decides
    how labels are read, and `columns` are those of a table with labels by field (`text`, `second`, `label`), where they
    have other names than usual. A `whole` text is evaluated on, as all of a file of rows is. Without `labels` a table
    is a classification, whatever its labels are.
    """
    part, _, path = text.partition(":")
    place = path if part in TASKS else text
    if place and is_prepared(place):
        settings = read_settings(source_of(place))
        if part in TASKS and settings.task != part:
            raise DataError(f"{source_of(place)}: holds {settings.task}, not {part}")
        spec = dataclasses.replace(TASKS.get(settings.task, TaskSpec(settings.task, settings.form)), form=settings.form)
        return Source(text, text, spec, place, prepared=True)
    task = text
    if part in ("all", "heldout") and path:
        task, whole = f"text:{path}", part == "all"
    if columns and (model is not None or ("label" in columns and part not in TASKS)):
        path = path if part in TASKS and path else text
        check_task(path)
        task = f"{labelled_form(first_file(path), columns, model)}:{path}"
    if task.partition(":")[0] not in TASKS:
        check_task(task)
        name = recognise(task, model, labels=labels)
        task = f"{name}:{task}{':source-target' if name == 'translation' else ''}"
    name, _, path = task.partition(":")
    spec = TASKS["similarity" if name == "sentence_similarity" and path and is_table(path) else name]
    if spec.arguments is not None:
        spec, path = spec.arguments(spec, path)
    alone = bool(path) and not source_of(path).is_dir() and not isinstance(spec.form, ImageForm)
    divisible = spec.documents and bool(spec.own or spec.layouts)
    whole = (alone and not spec.documents) or (whole and divisible)
    return Source(text, task, spec, path, columns, whole)


def resolve_training(text: str, model: Model, *, task: str | None = None, columns: Mapping[str, str] = {}) -> Source:
    """Return what files to fine-tune a model on are, see `resolve`; the model decides which tasks are possible.

    Without a `task` the columns and the model decide. Of translations, `text` is the source and `label` the target.
    """
    possible = trained_tasks(model)
    if task is not None and task not in possible:
        raise HeadjaxError(f"--task: this model can be fine-tuned for {', '.join(possible)}, not for {task}")
    if text.partition(":")[0] in TASKS or is_prepared(text):
        return resolve(text)
    languages = ""
    if possible == ("images",):
        name, columns = "images", {}
    elif possible == ("translation",):
        name, languages, columns = "translation", f":{'-'.join(_languages(text, columns))}", {}
    elif "text" in possible and not columns and task in (None, "text"):
        name = "text"
        if is_table(text) and "text" not in header(text):
            needs = "a decoder is fine-tuned on text, or a table with a column `text`"
            raise ColumnsError(f"{text}: {needs}; --task classification for classes", names_of_columns(text))
    else:
        name = task or ("classification" if columns else recognise(text))
        if (name in LABELLED and task is None) or (name == "text" and is_table(first_file(text))):
            columns = {} if name == "text" else columns or table_columns(first_file(text))  # of text, none is an error
            name = labelled_form(first_file(text), columns, model, fresh=True)
        if name == "text":
            formats = "a table (.tsv, .csv, .json, .jsonl, .parquet), a file in CoNLL's format or SQuAD's JSON"
            raise DataError(f"{text}: such a model is fine-tuned on {formats}")
        if name not in possible:
            raise DataError(f"{text}: holds {name}; this model can be fine-tuned for {', '.join(possible)}")
    return resolve(f"{name}:{text}{languages}", columns=columns)


def _languages(path: str, columns: Mapping[str, str]) -> Sequence[str]:
    """Return the columns, or suffixes of files, of a translation's source and target."""
    names = tuple(columns.values()) or (header(path) if is_table(path) else ())
    names = ("source", "target") if not columns and {"source", "target"} <= {*names} else names
    if len(names) != 2:
        raise DataError(f"{path}: which columns, or suffixes of files, are source and target? --columns en,de")
    return names


def trained_tasks(model: Model) -> tuple[str, ...]:
    """Return the tasks that a model can be fine-tuned for on one's own files."""
    continues = getattr(model.config, "task", None) is None
    possible = tuple(name for name in TRAINED.get(kind_of(model.config), ()) if name != "text" or continues)
    if not possible:
        raise HeadjaxError("MODEL: encoders, decoders, encoder-decoders and vision models are fine-tuned on files")
    return possible


def check_task(task: str) -> None:
    """Check that a task is known by its name, or that its path leads somewhere; no file is read."""
    name, _, path = task.partition(":")
    if name in TASKS and (TASKS[name].arguments is not None or isinstance(TASKS[name].form, TranslationForm)):
        return  # arguments or languages follow their paths
    place = path if name in (*TASKS, "all", "heldout") else task
    if not place or source_of(place).exists() or glob.has_magic(place) or glob.glob(f"{glob.escape(place)}.*"):
        return  # a path may be what several files begin with: `train` of `train.en` and `train.de`
    if place != task or "/" in task or Path(task).suffix:
        raise DataError(f"{place}: no such file or folder")
    raise DataError(f"task: {unknown_name('task or file', task, TASKS)}")


def recognise(path: str, model: Model | None = None, *, labels: bool = True) -> str:
    """Return the name of the form of a file, of a folder or of a pattern's files, for the model that reads it."""
    place = source_of(path)
    if place.is_dir() and is_image_folder(place):
        return "images"
    file = first_file(path)
    if suffix_of(file) in CONLL:
        return "tokens"
    if suffix_of(file) == ".json" and next(read_lines(file)).lstrip().startswith("{"):
        return "questions"
    if not is_table(file):
        return "text"
    names = {*header(file)}
    for name in ("tokens", "retrieval", "translation"):
        spec = TASKS[name]
        if {spec.column(field, names) for field in spec.form.wanted} <= names:
            return name
    if not labels:
        return "classification"
    columns = table_columns(file)
    # A table without labels is text, which a classifier does not read.
    return labelled_form(file, columns, model) if "label" in columns or classes_of(model) else "text"


def first_file(path: str) -> Path:
    """Return the first table below a folder, or its first file without one; the first file of another path."""
    files = find_files(path, ("",))
    return next(filter(is_table, files), files[0]) if source_of(path).is_dir() else files[0]


def table_columns(path: str | Path) -> dict[str, str]:
    """Return the columns of a table of labelled text by field: `text`, `second` of pairs, `label` if there is one."""
    names = header(path)
    columns = known_columns(names, PAIR_COLUMNS)
    if "text" not in columns:
        has = f"expected columns sentence, maybe sentence2, and label; it has {', '.join(names[:8])}"
        raise ColumnsError(f"{path}: {has}", names_of_columns(path))
    return columns


def known_columns(names: tuple[str, ...], known: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return for every field the first of its known columns that a table has; nothing for a field without any."""
    return {field: column for field, usual in known.items() if (column := find_column(usual, names))}


def classes_of(model: Model | None) -> tuple[str, ...]:
    """Return the names of a classifier's classes, or their numbers without names; empty for other models, and none."""
    output = getattr(getattr(model, "config", None), "task", None)
    return tuple(getattr(output, "names", ())) or class_numbers(getattr(output, "classes", 0))


def embeds(config: ModelConfig) -> bool:
    """Return whether a model of texts makes sentence vectors, or has nothing else to do."""
    output = getattr(config, "task", None)
    vectors = output is not None and kind_of(output) in ("no_task", "sentence_similarity")
    return kind_of(config) in ("encoder", "decoder") and vectors


def labelled_form(file: Path, columns: Mapping[str, str], model: Model | None = None, *, fresh: bool = False) -> str:
    """Return the form of a table of labelled texts or pairs, by its labels and the model's output.

    * Lists of labels, or any for a model of several labels, are `multi_label`.
    * Pairs with a `score`, or with labels with a decimal point, are `similarity` for models that embed sentences.
    * Labels for a model of numbers are a `regression`; without an output, or one to train (`fresh`), those with a
      decimal point.
    * Else labels are classes.
    """
    if "label" not in columns:
        raise ColumnsError(f"{file}: no column of labels ({', '.join(PAIR_COLUMNS['label'])})", "TEXT,LABEL")
    label, pairs = columns["label"], "second" in columns
    task = getattr(getattr(model, "config", None), "task", None)
    output = "" if task is None else kind_of(task)
    if output == "multi_label" or has_lists(file, label):
        return "multi_label"
    found = {row.values["label"] for row in table_rows(file, {"label": label})}
    known = [one for one in found if not is_missing(one, numbers=True)]
    real = any("." in one for one in known) and all(map(is_number, known))
    if any("," in one for one in known) and all(is_number(one.replace(",", ".")) for one in known):
        raise DataError(f"{file}: {label}: labels have decimal commas, such as {max(known, key=len)!r}; write points")
    if pairs and (real or label == "score") and (model is None or embeds(model.config)):
        return "similarity"
    if output == "regression" or (real and (fresh or not classes_of(model))):
        return "regression"
    return "pairs" if pairs else "classification"
