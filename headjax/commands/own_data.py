"""The user's files to fine-tune on: the task that they are about, their data config, and the model's output for it."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, NamedTuple

from headjax.core.class_names import find_class, tell_nothing
from headjax.core.errors import DataError, HeadjaxError
from headjax.core.task_names import OwnTask
from headjax.data.files import find_files
from headjax.data.forms.questions import usual_stride
from headjax.data.labelled_text import TextClassification, TextRegression, TextSimilarity
from headjax.data.local_files import HELD_OUT
from headjax.data.tables import header, is_table, table_rows
from headjax.data.task import DataConfig
from headjax.data.text_data import LanguageConfig, ParallelText, QuestionAnswering
from headjax.evaluation.specs import LENGTH, SQUAD_LENGTH, Labels, Request, read_labels, table_columns
from headjax.models.decoder import DecoderConfig
from headjax.models.encoder import EncoderConfig
from headjax.models.encoder_decoder import EncoderDecoderConfig
from headjax.models.model import Model
from headjax.models.tasks import (
    Classification,
    DistilledClassification,
    NoTask,
    Regression,
    SentenceSimilarity,
    Span,
    TaskOutput,
)
from headjax.models.tasks.classification import class_names, names_or_numbers
from headjax.storage.files import read_text

TRANSLATION_LENGTH = 128
"""Default number of tokens of each side of a translation."""

BUCKETS = (32, 64, 128, 256)
"""Lengths to which training batches are padded, as far as they are below the longest example's."""

FAMILIES: dict[type, tuple[OwnTask, ...]] = {
    EncoderConfig: ("classification", "pairs", "regression", "similarity", "questions"),
    EncoderDecoderConfig: ("translation",),
    DecoderConfig: ("text",),
}
"""Tasks by kind of model."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnFiles:
    """Files as a user names them."""

    train: str
    validation: str = ""
    task: OwnTask | None = None
    columns: tuple[str, ...] = ()
    length: int = 0


class InferredTask(NamedTuple):
    """A model's task on the user's own files."""

    task: OwnTask
    data: DataConfig
    output: TaskOutput | None
    division: str


def infer_task(model: Model, files: OwnFiles) -> InferredTask:
    """Return the task of the files for a model."""
    possible = next((tasks for kind, tasks in FAMILIES.items() if isinstance(model.config, kind)), ())
    if not possible:
        raise HeadjaxError("MODEL: encoders, decoders and encoder-decoders of text are fine-tuned on files")
    if files.task is not None and files.task not in possible:
        raise HeadjaxError(f"--task: this model can be fine-tuned for {', '.join(possible)}, not for {files.task}")
    Request("", model, 0).tokenizer()
    if possible == ("text",):
        return _text(model, files)
    if possible == ("translation",):
        return _translation(model, files)
    if files.task == "questions" or (files.task is None and _holds_questions(files.train)):
        return _questions(model, files)
    return _labelled(model, files)


def _division(files: OwnFiles, held_out: str, share: float = 0.1) -> str:
    """Return the origin of the validation examples; `share` is the `validation_fraction` of the data's config."""
    return files.validation or f"about {share:.0%} of {files.train}: {held_out}"


def _buckets(length: int) -> tuple[int, ...]:
    return tuple(bound for bound in BUCKETS if bound < length)


def _text(model: Model, files: OwnFiles) -> InferredTask:
    if is_table(files.train):
        raise DataError(f"{files.train}: a decoder is fine-tuned on plain text, not on a table")
    length = Request("", model, files.length).length()
    data = LanguageConfig(path=files.train, validation=files.validation, length=length)
    return InferredTask("text", data, None, _division(files, "pieces of the text, by their hash", HELD_OUT))


def _translation(model: Model, files: OwnFiles) -> InferredTask:
    columns = files.columns
    if not columns and is_table(files.train):
        names = header(files.train)
        columns = ("source", "target") if {"source", "target"} <= set(names) else names
    if len(columns) != 2:
        said = f"{files.train}: which columns, or suffixes of files, are source and target? --columns en,de"
        raise DataError(said)
    read = _reading(model, files, TRANSLATION_LENGTH)
    data = ParallelText(train=files.train, source=columns[0], target=columns[1], **read)
    return InferredTask("translation", data, None, _division(files, "pairs, by the hash of the source"))


def _reading(model: Model, files: OwnFiles, usual: int = LENGTH) -> dict[str, Any]:
    """Return the file to evaluate on, the length of an example and the buckets, as fields of the data's config."""
    length = Request("", model, files.length).length(usual)
    return {"validation": files.validation, "max_length": length, "buckets": _buckets(length)}


def _holds_questions(path: str) -> bool:
    file = find_files(path)[0]
    return ".json" in file.suffixes and read_text(file).lstrip().startswith("{")


def _questions(model: Model, files: OwnFiles) -> InferredTask:
    read = _reading(model, files, SQUAD_LENGTH)
    data = QuestionAnswering(train=files.train, stride=usual_stride(read["max_length"]), **read)
    output = None if isinstance(_output(model), Span) else Span()
    return InferredTask("questions", data, output, _division(files, "questions, by the hash of their paragraph"))


def _output(model: Model) -> Any:
    return getattr(model.config, "task", None)


def _labelled(model: Model, files: OwnFiles) -> InferredTask:
    """Return the task of a table of labelled texts or pairs."""
    if not is_table(files.train):
        raise DataError(
            f"{files.train}: an encoder is fine-tuned on a table (.tsv, .csv, .json, .jsonl, .parquet) or SQuAD's JSON"
        )
    columns = _columns(files)
    labels = read_labels(files.train, columns["label"])
    task = files.task or _task(model, labels, columns, files.train)
    if task in ("pairs", "similarity") and "second" not in columns:
        raise DataError(f"{files.train}: {task} need a column of second texts; name it: --columns TEXT,SECOND,LABEL")
    fields = {"path": files.train, **_reading(model, files), **columns}
    division = _division(files, "rows, by the hash of their first text")
    if task == "regression":
        kept = isinstance(_output(model), Regression) and _output(model).outputs == 1
        return InferredTask(task, TextRegression(**fields), None if kept else Regression(), division)
    if task == "similarity":
        others = [read_labels(files.validation, columns["label"])] if files.validation else []
        scale = max(1.0, *(each.largest for each in (labels, *others)))
        kept = isinstance(_output(model), SentenceSimilarity)
        return InferredTask(
            task, TextSimilarity(**fields, scale=scale), None if kept else SentenceSimilarity(), division
        )
    data = TextClassification(**fields)
    rows = list(table_rows(files.train, {"label": columns["label"]}))
    classes = data.labels({"train": rows, "validation": []})
    known = _has_classes(model, classes)
    if len(classes) < 2 and not known:
        raise DataError(f"{files.train}: all labels are {classes[0]!r}; a classification needs two classes")
    named = () if tell_nothing(classes) else classes
    output = None if known else Classification(classes=len(classes), names=named)
    names = names_or_numbers(model.config) if output is None else output.names or classes
    return InferredTask("pairs" if "second" in columns else "classification", data.for_classes(names), output, division)


def _columns(files: OwnFiles) -> dict[str, str]:
    """Return the columns of a table by field, as named or as found."""
    if not files.columns:
        return table_columns(files.train)
    if len(files.columns) not in (2, 3):
        raise DataError("--columns: expected TEXT,LABEL or TEXT,SECOND,LABEL")
    text, *second, label = files.columns
    return {"text": text, **({"second": second[0]} if second else {}), "label": label}


def _task(model: Model, labels: Labels, columns: dict[str, str], path: str) -> OwnTask:
    """Return the task by the labels: numbers with a decimal point, or scores of pairs, are no classes."""
    output = _output(model)
    classes: OwnTask = "pairs" if "second" in columns else "classification"
    embeds = isinstance(output, NoTask | SentenceSimilarity)
    scored = columns["label"] == "score" or isinstance(output, Regression)
    task: OwnTask = "regression" if labels.real or isinstance(output, Regression) else classes
    if "second" in columns and embeds and (labels.real or columns["label"] == "score"):
        task = "similarity"
    if labels.real and labels.whole and not scored:
        told = f"{path}: the labels are whole numbers with a decimal point, up to {labels.largest:.1f}, taken as {task}"
        asked = f"--task {classes} makes them classes, --task regression numbers"
        warnings.warn(f"{told}: {asked}", UserWarning, stacklevel=2)
    return task


def _has_classes(model: Model, labels: tuple[str, ...]) -> bool:
    """Return whether the model classifies into these classes already; a file need not have all of them."""
    if not isinstance(_output(model), Classification | DistilledClassification):
        return False
    names = class_names(model.config)
    if not names:
        return tell_nothing(labels) and len(labels) == _output(model).classes
    return all(find_class(label, names) is not None for label in labels)
