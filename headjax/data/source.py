"""What data a name or a path is, said once for every command: its task and form, columns, labels and splits."""

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
from headjax.data.tables import first_rows, has_lists, header, is_table, table_rows
from headjax.storage.files import read_lines
from headjax.storage.hub import source_of

if TYPE_CHECKING:
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
    """Data that a name or a path stands for, see `resolve`; no row has been encoded.

    Attributes:
        text: the name or path.
        task: the same with the name of its form, as `DataConfig.task` takes it.
        spec: the record of its task, with its form.
        path: path of its files; empty where they are looked for under HEADJAX_DATA, come from TFDS or with Python.
        columns: columns of a table by field, where they are not found by the task's own names.
        labels: names of its classes in the order of their numbers, as the model or the task has them.
        whole: whether all rows are evaluated on, and none trained on.
        prepared: whether the path is a folder that `headjax prepare` wrote.
    """

    text: str
    task: str
    spec: TaskSpec
    path: str = ""
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    labels: tuple[str, ...] = ()
    whole: bool = False
    prepared: bool = False

    @property
    def form(self) -> Form:
        """How rows are encoded, before lengths and classes are known."""
        return self.spec.form

    @property
    def splits(self) -> tuple[str, ...]:
        """Splits that it may have; the files decide where there are both."""
        return ("validation",) if self.whole else ("train", "validation")

    @property
    def has_classes(self) -> bool:
        """Whether labels are classes."""
        return self.spec.learns_classes or (bool(self.form.label_names) and isinstance(self.form, LabelledForm))

    @property
    def name(self) -> str:
        """Its name in tables: the task's, or the user's files."""
        if self.text.partition(":")[0] in ("all", "heldout", "translation", "images") and self.path:
            return self.path
        one_file = not self.prepared and self.path and source_of(self.path).is_file()
        return self.text if (self.spec.own and not self.prepared) or one_file else self.spec.name

    @property
    def note(self) -> str:
        """The form that a path alone was read as; empty where a name says it."""
        return self.spec.name if self.text == self.path and not self.prepared else ""


def resolve(
    text: str,
    model: Model | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    whole: bool = False,
    labels: bool = True,
) -> Source:
    """Return what data a name or a path is.

    Args:
        text: `NAME`; `NAME:PATH`; a file, a folder, a pattern or an address (`hf://`, `gs://`), whose form is
            recognised; a folder that `headjax prepare` wrote; `all:FILE`, a whole text; `heldout:FILE`, its held-out
            part; `translation:PATH:SOURCE-TARGET`; `wikitext2:FOLDER,context=1024`.
        model: the model that reads it, whose output decides how labels are read.
        columns: columns of a table with labels by field (`text`, `second`, `label`); None goes by their usual names.
        whole: whether all of a text is evaluated on; all of a file of rows is.
        labels: whether the rows of a table are read for the form of their labels; else it is a classification.

    Raises:
        DataError: no such task or path, or a table without the columns that are needed.
    """
    part, _, path = text.partition(":")
    place = path if part in TASKS else text
    if place and is_prepared(place):
        settings = read_settings(source_of(place))
        spec = dataclasses.replace(TASKS.get(settings.task, TaskSpec(settings.task, settings.form)), form=settings.form)
        return Source(text, text, spec, place, prepared=True)
    task = text
    if part in ("all", "heldout") and path:
        task, whole = f"text:{path}", part == "all"
    if columns and (model is not None or ("label" in columns and part not in TASKS)):
        path = path if part in TASKS and path else text
        check_task(path)
        task = f"{labelled_form(first_file(path), columns, model)}:{path}"
    spec, path = _named(task)
    if not spec.name:
        name = recognise(path, labels=labels)
        file = first_file(path) if model is not None and name in ("text", *LABELLED) else None
        # A table without labels is text, which a classifier does not read.
        if file is not None and (name in LABELLED or (is_table(file) and classes_of(model))):
            name = labelled_form(file, table_columns(file), model)
        task = f"{name}:{path}{':source-target' if name == 'translation' else ''}"
        spec = _named(task)[0]
    alone = bool(path) and not source_of(path).is_dir() and not isinstance(spec.form, ImageForm)
    divisible = spec.documents and bool(spec.own or spec.layouts)
    whole = (alone and not spec.documents) or (whole and divisible)
    return Source(text, task, spec, path, columns or {}, classes_of(model) or spec.form.label_names, whole)


def resolve_training(
    text: str, model: Model, *, task: str | None = None, columns: Mapping[str, str] | None = None
) -> Source:
    """Return what files to fine-tune a model on are, see `resolve`; the model decides which tasks are possible.

    Args:
        text: the name or path.
        model: the model that is trained.
        task: what to train for; None goes by the columns and the model.
        columns: columns of a table by field; of translations `text` is the source and `label` the target.
    """
    possible = trained_tasks(model)
    if task is not None and task not in possible:
        raise HeadjaxError(f"--task: this model can be fine-tuned for {', '.join(possible)}, not for {task}")
    columns = columns or {}
    if text.partition(":")[0] in TASKS or is_prepared(text):
        return resolve(text)
    if "text" in possible and not columns and task in (None, "text"):
        if is_table(text) and "text" not in header(text):
            needs = (
                "a decoder is fine-tuned on text, or a table with a column `text`; --task classification for classes"
            )
            raise ColumnsError(f"{text}: {needs}", names_of_columns(text))
        return _trained("text", text)
    if possible == ("images",):
        return _trained("images", text)
    if possible == ("translation",):
        return _trained("translation", text, suffix=f":{'-'.join(_languages(text, columns))}")
    name = task or ("classification" if columns else recognise(text))
    if name == "text" and is_table(first_file(text)):
        labelled_form(first_file(text), {}, model)  # which says that there are no labels
    if name == "text":
        formats = "a table (.tsv, .csv, .json, .jsonl, .parquet), a file in CoNLL's format or SQuAD's JSON"
        raise DataError(f"{text}: such a model is fine-tuned on {formats}")
    if name in LABELLED and task is None:
        columns = columns or table_columns(first_file(text))
        name = labelled_form(first_file(text), columns, model, fresh=True)
    if name not in possible:
        raise DataError(f"{text}: holds {name}; this model can be fine-tuned for {', '.join(possible)}")
    return _trained(name, text, columns)


def _trained(name: str, path: str, columns: Mapping[str, str] = {}, suffix: str = "") -> Source:
    task = f"{name}:{path}{suffix}"
    return Source(path, task, _named(task)[0], path, columns)


def _languages(path: str, columns: Mapping[str, str]) -> Sequence[str]:
    """Return the columns, or suffixes of files, of a translation's source and target."""
    names = tuple(columns.values()) or (header(path) if is_table(path) else ())
    names = ("source", "target") if not columns and {"source", "target"} <= {*names} else names
    if len(names) != 2:
        raise DataError(f"{path}: which columns, or suffixes of files, are source and target? --columns en,de")
    return names


def trained_tasks(model: Model) -> tuple[str, ...]:
    """Return the tasks that a model can be fine-tuned for on one's own files."""
    possible = TRAINED.get(kind_of(model.config), ())
    classifies = getattr(model.config, "task", None) is not None
    possible = tuple(name for name in possible if name != "text" or not classifies)
    if not possible:
        raise HeadjaxError("MODEL: encoders, decoders, encoder-decoders and vision models are fine-tuned on files")
    return possible


# Names.


def _named(task: str) -> tuple[TaskSpec, str]:
    """Return the task that is named and the path of its files; a path alone has a task without a name."""
    name, _, path = task.partition(":")
    if name == "sentence_similarity" and path and is_table(path):
        name = "similarity"
    if name in TASKS:
        spec = TASKS[name]
        return (spec, path) if spec.arguments is None else spec.arguments(spec, path)
    check_task(task)
    return TaskSpec("", TASKS["text"].form), task


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


# Files.


def recognise(path: str, *, labels: bool = True) -> str:
    """Return the name of the form of a file, of a folder or of a pattern's files."""
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
    return labelled_form(file, columns) if "label" in columns else "text"


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
    """Return for every field the first of its known columns that a table has; nothing for a field without any.

    Neither case nor blanks around a name count.
    """
    there = {name.strip().casefold(): name for name in reversed(names)}
    columns = {field: next((there[one] for one in usual if one in there), "") for field, usual in known.items()}
    return {field: column for field, column in columns.items() if column}


SEEN = 64
"""Rows of a table that are looked at to tell whether its first row is one of them."""


def names_of_columns(path: str | Path) -> str:
    """Return what to name as the columns of a table of labelled texts: numbers from 0 where it has no header.

    It has none where the first row has a number, or in some column a text that other rows repeat there.
    """
    columns = [*zip(*first_rows(path, SEEN), strict=False)]
    if len(columns) < 2 or not any(_is_number(first) or first in others for first, *others in columns):
        return "TEXT,LABEL"
    text = max(range(len(columns)), key=lambda i: sum(map(len, columns[i])))
    label = min((i for i in range(len(columns)) if i != text), key=lambda i: (len({*columns[i]}), -i))
    return f"{text},{label}"


# Labels.


def classes_of(model: Model | None) -> tuple[str, ...]:
    """Return the names of a classifier's classes, or their numbers without names; empty for other models, and none."""
    output = getattr(getattr(model, "config", None), "task", None)
    return tuple(getattr(output, "names", ())) or class_numbers(getattr(output, "classes", 0))


def _output_of(model: Model | None) -> str:
    output = getattr(getattr(model, "config", None), "task", None)
    return "" if output is None else kind_of(output)


def labelled_form(
    file: str | Path, columns: Mapping[str, str], model: Model | None = None, *, fresh: bool = False
) -> str:
    """Return the form of a table of labelled texts or pairs, by its labels and the model's output.

    * Lists of labels, or any for a model of several labels, are `multi_label`.
    * Pairs with a `score`, or with labels with a decimal point, are `similarity` for models that embed sentences.
    * Labels for a model of numbers are a `regression`; without an output, or one to train (`fresh`), those with a
      decimal point.
    * Else labels are classes.
    """
    if "label" not in columns:
        usual = ", ".join(PAIR_COLUMNS["label"])
        raise ColumnsError(f"{file}: no column of labels ({usual})", "TEXT,LABEL")
    label, pairs, output = columns["label"], "second" in columns, _output_of(model)
    if output == "multi_label" or has_lists(file, label):
        return "multi_label"
    found = {row.values["label"] for row in table_rows(file, {"label": label})}
    known = [one for one in found if not is_missing(one, numbers=True)]
    real = any("." in one for one in known) and all(map(_is_number, known))
    if any("," in one for one in known) and all(_is_number(one.replace(",", ".")) for one in known):
        raise DataError(f"{file}: {label}: labels have decimal commas, such as {max(known, key=len)!r}; write points")
    embeds = model is None or (kind_of(model.config) in ("encoder", "decoder") and output in EMBEDDING)
    if embeds and pairs and (real or label == "score"):
        return "similarity"
    if output == "regression" or (real and (fresh or not classes_of(model))):
        return "regression"
    return "pairs" if pairs else "classification"


EMBEDDING = ("no_task", "sentence_similarity")
"""Outputs of models of texts that make sentence vectors, or have nothing else to do."""


def _is_number(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True
