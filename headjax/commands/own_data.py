"""The user's files to fine-tune on: the task that they are about, their data config, and the model's output for it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, NamedTuple, get_args

from headjax.commands.examples import by_field
from headjax.commands.own_files import LabelTask, OwnFiles, OwnTask
from headjax.core.class_names import ClassIndex, is_missing, tell_nothing
from headjax.core.errors import DataError, HeadjaxError
from headjax.data.config import DataConfig, Opened
from headjax.data.forms import Form, ImageForm, LabelledForm, MultiLabelForm, QuestionForm, SimilarityForm, TagForm
from headjax.data.forms.labelled import finite
from headjax.data.recognise import first_file, named_task, recognise, table_columns
from headjax.data.registry import TASKS
from headjax.data.tables import header, is_table
from headjax.evaluation.specs import Request, fitted, table_form
from headjax.models.decoder import DecoderConfig
from headjax.models.encoder import EncoderConfig
from headjax.models.encoder_decoder import EncoderDecoderConfig
from headjax.models.model import Model
from headjax.models.tasks import (
    Classification,
    DistilledClassification,
    MultiLabel,
    Regression,
    SentenceSimilarity,
    Span,
    TaskOutput,
    TokenClassification,
)
from headjax.models.tasks.classification import class_names, names_or_numbers
from headjax.models.vision import VisionConfig

TRANSLATION_LENGTH = 128
"""Default number of tokens of each side of a translation."""

BUCKETS = (32, 64, 128, 256)
"""Lengths to which training batches are padded, as far as they are below the longest example's."""

LABELLED: tuple[OwnTask, ...] = get_args(LabelTask)

FAMILIES: dict[type, tuple[OwnTask, ...]] = {
    EncoderConfig: (*LABELLED, "retrieval", "tokens", "questions"),
    EncoderDecoderConfig: ("translation",),
    DecoderConfig: ("text", *LABELLED),
    VisionConfig: ("images",),
}
"""Tasks by kind of model."""


class InferredTask(NamedTuple):
    """A model's task on the user's own files, or on a task by name."""

    task: str
    data: DataConfig
    output: TaskOutput | None
    division: str


def infer_task(model: Model, files: OwnFiles) -> InferredTask:
    """Return the task of the files for a model."""
    possible = next((tasks for kind, tasks in FAMILIES.items() if isinstance(model.config, kind)), ())
    classifies = getattr(model.config, "task", None) is not None
    possible = tuple(name for name in possible if name != "text" or not classifies)
    if not possible:
        raise HeadjaxError("MODEL: encoders, decoders, encoder-decoders and vision models are fine-tuned on files")
    if files.task is not None and files.task not in possible:
        raise HeadjaxError(f"--task: this model can be fine-tuned for {', '.join(possible)}, not for {files.task}")
    request = Request(model, files.length or 0)
    if "images" not in possible:
        request.tokenizer()
    elif files.validation:
        raise HeadjaxError("--validation: a folder of images has a folder `validation` beside `train`")
    name, columns, task = _named(model, files, possible)
    data = DataConfig(task=task, validation=files.validation, columns=columns)
    data = fitted(data, request, TRANSLATION_LENGTH if name == "translation" else 512)
    if name != "text":
        data = dataclasses.replace(data, buckets=tuple(bound for bound in BUCKETS if bound < data.length))
    if data.folder is not None:
        return InferredTask(name, dataclasses.replace(data, buckets=()), None, "those that were prepared")
    data = dataclasses.replace(data, classes=())
    opened = dataclasses.replace(data, validation="", whole=True).open()
    output = _output(model, opened, files.train)
    names = (
        names_or_numbers(model.config) if output is None else getattr(output, "names", ()) or opened.form.label_names
    )
    return InferredTask(name, data.for_classes(names) if names else data, output, _division(files, opened))


def _named(model: Model, files: OwnFiles, possible: tuple[OwnTask, ...]) -> tuple[str, dict[str, str], str]:
    """Return the form of the files, the columns of a table, and the task as `DataConfig` takes it."""
    path, given = files.train, files.columns
    if path.partition(":")[0] in TASKS:
        return named_task(path).spec.name, {}, path
    if "text" in possible and not given and files.task in (None, "text"):
        if is_table(path) and "text" not in header(path):
            others = "--task classification or --columns TEXT,LABEL for classes"
            raise DataError(f"{path}: a decoder is fine-tuned on text, or on a table with a column `text`; {others}")
        return "text", {}, f"text:{path}"
    if possible == ("images",):
        return "images", {}, f"images:{path}"
    if possible == ("translation",):
        names = given or (header(path) if is_table(path) else ())
        names = ("source", "target") if not given and {"source", "target"} <= {*names} else names
        if len(names) != 2:
            raise DataError(f"{path}: which columns, or suffixes of files, are source and target? --columns en,de")
        return "translation", {}, f"translation:{path}:{'-'.join(names)}"
    name = files.task or ("classification" if given else recognise(path))
    if name == "text" and is_table(first_file(path)):
        table_form(path, {}, model)  # which says that there are no labels
    if name == "text":
        formats = "a table (.tsv, .csv, .json, .jsonl, .parquet), a file in CoNLL's format or SQuAD's JSON"
        raise DataError(f"{path}: such a model is fine-tuned on {formats}")
    columns = by_field(files)
    if name in LABELLED and files.task is None:
        columns = columns or table_columns(first_file(path))
        name = table_form(str(first_file(path)), columns, model, trains=True)
    if name not in possible:
        raise DataError(f"{path}: holds {name}; this model can be fine-tuned for {', '.join(possible)}")
    return name, columns, f"{name}:{path}"


def _division(files: OwnFiles, opened: Opened) -> str:
    """Return the origin of the validation examples."""
    if files.validation:
        return files.validation
    if isinstance(opened.form, ImageForm):
        return f"those of {files.train}"
    share = f"about {opened.spec.held_out:.0%} of {files.train}, by the hash of their text"
    return share if opened.spec.own else f"those of {files.train}"


def _output(model: Model, opened: Opened, path: str) -> TaskOutput | None:
    """Return the output that a model needs for a form; None if it has it."""
    own, classes = getattr(model.config, "task", None), opened.form.label_names
    wanted = _wanted(opened.form)
    if isinstance(wanted, Classification):
        if _has_classes(model, classes):
            return None
        if len(classes) < 2:
            raise DataError(f"{path}: all labels are {classes[0]!r}; a classification needs two classes")
    if isinstance(own, Regression) and own.outputs != 1:
        return wanted
    if isinstance(own, Regression) and own.activation and isinstance(wanted, Regression):
        _check_shares(opened, path)
    same = type(own) is type(wanted) and (not classes or _has_names(model, classes))
    return None if same else wanted


def _check_shares(opened: Opened, path: str) -> None:
    """Check the labels of a model whose numbers are those of a sigmoid."""
    for row in itertools.chain.from_iterable(source.rows() for source in opened.rows.values()):
        label = row.values["label"]
        if not is_missing(label, numbers=True) and not 0.0 <= finite(row.place, label) <= 1.0:
            scale = f"the label {label} is not between 0 and 1 as the model's numbers are (activation_fn Sigmoid)"
            raise DataError(f"{row.place}: {scale}; divide the labels of {path} by the largest one")


def _wanted(form: Form) -> TaskOutput | None:
    """Return the output for a form; None for one of a language model."""
    classes = form.label_names
    many: dict[str, Any] = {"classes": len(classes), "names": () if tell_nothing(classes) else classes}
    if isinstance(form, TagForm):
        return TokenClassification(**many)
    if isinstance(form, MultiLabelForm):
        return MultiLabel(**many)
    if isinstance(form, LabelledForm | ImageForm):
        return Classification(**many) if classes else Regression()
    outputs: dict[type, TaskOutput] = {QuestionForm: Span(), SimilarityForm: SentenceSimilarity()}
    return next((output for kind, output in outputs.items() if isinstance(form, kind)), None)


def _has_classes(model: Model, labels: tuple[str, ...]) -> bool:
    """Return whether the model classifies into these classes already; a file need not have all of them."""
    output = getattr(model.config, "task", None)
    return isinstance(output, Classification | DistilledClassification) and _has_names(model, labels)


def _has_names(model: Model, labels: tuple[str, ...]) -> bool:
    """Return whether a model's classes have these names."""
    names: Any = class_names(model.config)
    if not names:
        return tell_nothing(labels) and len(labels) == getattr(model.config, "task").classes  # noqa: B009
    index = ClassIndex(names)
    return all(index.find(label) is not None for label in labels)
