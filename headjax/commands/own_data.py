"""The user's files to fine-tune on: the task that they are about, their data config, and the model's output for it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from headjax.commands.options import CALIBRATE, by_field
from headjax.core.class_names import ClassIndex, is_missing, tell_nothing
from headjax.core.errors import DataError, HeadjaxError
from headjax.data.config import DataConfig, Opened
from headjax.data.examples import Padded, TaskData, each
from headjax.data.forms import Form, ImageForm, LabelledForm, MultiLabelForm, QuestionForm, SimilarityForm, TagForm
from headjax.data.forms.form import load_rows
from headjax.data.forms.labelled import finite
from headjax.data.source import classes_of, resolve_training, trained_tasks
from headjax.data.spec import OWN_HELD_OUT
from headjax.data.stream import evaluation_batches
from headjax.evaluation import specs
from headjax.evaluation.specs import LENGTH, fitted
from headjax.evaluation.task import BATCH_SIZE
from headjax.models import tasks
from headjax.models.generation import tokenizer_of
from headjax.models.model import Model
from headjax.models.tasks.classification import class_names
from headjax.models.tasks.similarity import similarity

TRANSLATION_LENGTH = 128
"""Default number of tokens of each side of a translation."""

BUCKETS = (32, 64, 128, 256)
"""Lengths to which training batches are padded, as far as they are below the longest example's."""


class InferredTask(NamedTuple):
    """A model's task on the user's own files, or on a task by name."""

    task: str
    data: DataConfig
    output: tasks.TaskOutput | None
    division: str


def infer_task(
    model: Model,
    train: str,
    *,
    validation: str = "",
    task: str | None = None,
    columns: Sequence[str] = (),
    length: int = 0,
) -> InferredTask:
    """Return the task of files to train on for a model; arguments are the options of `headjax finetune`."""
    if trained_tasks(model) != ("images",):
        tokenizer_of(model)
    elif validation:
        raise HeadjaxError("--validation: a folder of images has a folder `validation` beside `train`")
    source = resolve_training(train, model, task=task, columns=by_field(columns))
    name = source.spec.name
    data = fitted(source, model, length, TRANSLATION_LENGTH if name == "translation" else LENGTH)
    data = dataclasses.replace(data, whole=False, validation=validation)
    if source.prepared:
        return InferredTask(name, data, None, "those that were prepared")
    buckets = tuple(bound for bound in BUCKETS if bound < data.length) if name != "text" else ()
    data = dataclasses.replace(data, buckets=buckets, classes=())
    opened = dataclasses.replace(data, validation="", whole=True).open()
    output = _output(model, opened, train)
    names = classes_of(model) if output is None else getattr(output, "names", ()) or opened.form.label_names
    data = data.for_classes(names) if names else data
    if validation:
        division = validation
    elif isinstance(opened.form, ImageForm) or not opened.spec.own:
        division = f"those of {train}"
    else:
        division = f"about {opened.spec.held_out:.0%} of {train}, by the hash of their text"
    return InferredTask(name, data, output, division)


def texts_to_distil(
    model: Model, teacher: Model, train: str, *, validation: str = "", columns: Sequence[str] = (), length: int = 0
) -> tuple[InferredTask, TaskData] | None:
    """Return texts without labels, on which a model that embeds sentences learns a teacher's vectors; None of others.

    Without a file for validation a tenth is held out, at most `CALIBRATE` pairs: the teacher's similarities are their
    labels.
    """
    teaches = isinstance(getattr(teacher.config, "task", None), tasks.SentenceSimilarity)
    source = specs.source_of_texts(train, model, by_field(columns)) if teaches else None
    if source is None:
        return None
    rows = specs.rows_of_texts(source)
    rows = [rows[index] for index in np.random.default_rng(specs.SEED).permutation(len(rows))]
    held = 0 if validation else 2 * min(round(OWN_HELD_OUT * len(rows) / 2), CALIBRATE)
    if len(rows) < 2 or not (held or validation):
        raise DataError(f"{train}: {len(rows)} texts are too few to hold some out; --validation names other pairs")
    form, tokenizer = specs.form_of_texts(model, length), tokenizer_of(model)
    info = specs.UNLABELLED | {"text": train}
    data = load_rows(form, {"train": rows[held:], "validation": rows[:held]}, tokenizer, info)
    data = data._replace(train=dataclasses.replace(cast(Padded, data.train), bounds=BUCKETS))
    if validation:
        judged = specs.load_task(validation, model, length, split="all").data
        data = data._replace(validation=judged.validation, measured=judged.measured)
    else:
        data = data._replace(validation=_labelled_by(teacher, cast(Padded, data.validation)))
    output = None if isinstance(model.config.task, tasks.SentenceSimilarity) else tasks.SentenceSimilarity()
    division = validation or f"{held // 2} pairs of texts of {train}, labelled by the teacher"
    config = DataConfig(task=source.task, length=form.length, buckets=BUCKETS)
    return InferredTask("similarity", config, output, division), data


def _labelled_by(teacher: Model, pairs: Padded) -> Padded:
    """Return pairs whose labels are a teacher's cosines."""
    forward = jax.jit(lambda batch: teacher.forward(batch).require_embeddings())
    vectors = jnp.concatenate([forward(batch) for batch in evaluation_batches(pairs, BATCH_SIZE)])[: len(pairs)]
    labels = np.asarray(similarity("cosine", vectors[:, 0], vectors[:, 1]), np.float32)[:, None]
    labelled = zip(each(pairs.records), labels, strict=True)
    return dataclasses.replace(pairs, records=[{**record, "labels": label} for record, label in labelled])


def _output(model: Model, opened: Opened, path: str) -> tasks.TaskOutput | None:
    """Return the output that a model needs for a form; None if it has it."""
    own: Any = getattr(model.config, "task", None)
    classes, wanted = opened.form.label_names, _wanted(opened.form)
    if isinstance(wanted, tasks.Classification):
        if isinstance(own, tasks.Classification | tasks.DistilledClassification) and _has_names(model, classes):
            return None  # a file need not have all of its classes
        if len(classes) < 2:
            raise DataError(f"{path}: all labels are {classes[0]!r}; a classification needs two classes")
    if isinstance(own, tasks.Regression) and own.outputs != 1:
        return wanted
    numbers = isinstance(own, tasks.Regression) and isinstance(wanted, tasks.Regression)
    if numbers and own.activation:  # of a sigmoid
        for row in itertools.chain.from_iterable(source.rows() for source in opened.rows.values()):
            label = row.values["label"]
            if not is_missing(label, numbers=True) and not 0.0 <= finite(row.place, label) <= 1.0:
                scale = f"the label {label} is not between 0 and 1 as the model's numbers are (activation_fn Sigmoid)"
                raise DataError(f"{row.place}: {scale}; divide the labels of {path} by the largest one")
    same = type(own) is type(wanted) and (not classes or _has_names(model, classes))
    return None if same else wanted


def _wanted(form: Form) -> tasks.TaskOutput | None:
    """Return the output for a form; None for one of a language model."""
    classes = form.label_names
    many: dict[str, Any] = {"classes": len(classes), "names": () if tell_nothing(classes) else classes}
    if isinstance(form, TagForm):
        return tasks.TokenClassification(**many)
    if isinstance(form, MultiLabelForm):
        return tasks.MultiLabel(**many)
    if isinstance(form, LabelledForm | ImageForm):
        return tasks.Classification(**many) if classes else tasks.Regression()
    if isinstance(form, QuestionForm):
        return tasks.Span()
    return tasks.SentenceSimilarity() if isinstance(form, SimilarityForm) else None


def _has_names(model: Model, labels: tuple[str, ...]) -> bool:
    names: Any = class_names(model.config)
    if not names:
        return tell_nothing(labels) and len(labels) == getattr(model.config, "task").classes  # noqa: B009
    index = ClassIndex(names)
    return all(index.find(label) is not None for label in labels)
