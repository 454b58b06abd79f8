"""The tasks that TensorFlow Datasets has, as seqio Tasks (Roberts et al. 2022). Imports TensorFlow.

`headjax prepare` reads their rows through `row_task`. Importing this module registers `headjax_NAME` for each task that
can be written as text to text (Raffel et al. 2020): `inputs` and `targets`, of language models `targets` alone, encoded
as bytes, with the task's metrics. `text_task` gives one with another vocabulary, for `seqio.TaskRegistry.add_provider`.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from headjax.core.class_names import ClassIndex
from headjax.core.errors import DataError
from headjax.data import metrics as formulas
from headjax.data.forms.labelled import LabelledForm
from headjax.data.forms.language import LanguageForm, TranslationForm
from headjax.data.forms.questions import QuestionForm
from headjax.data.rows import SPLITS, Row, Rows, RowSource, Split
from headjax.data.task_spec import TaskSpec, TfdsSource
from headjax.data.tasks import TASKS

HOST = "storage.googleapis.com"
"""Host that TFDS asks first for a data set that it does not have."""

PREFIX = "headjax_"
"""Prefix of the names of registered tasks, against collisions."""

WRONG = -1
"""Number of the class of a text that names none."""

Tensors = Mapping[str, tf.Tensor]
"""The fields of a row as tensors."""

TYPES: Mapping[str, Callable[[TaskSpec], tf.TensorSpec]] = {
    "text": lambda spec: tf.TensorSpec((), tf.string),
    "texts": lambda spec: tf.TensorSpec((None,), tf.string),
    "integer": lambda spec: tf.TensorSpec((), tf.int32),
    "label": lambda spec: tf.TensorSpec((), tf.int64 if spec.form.label_names else tf.float32),
    "image": lambda spec: tf.TensorSpec((None, None, None), tf.uint8),
}
"""Tensors of the fields by their type."""


def row_task(spec: TaskSpec, source: TfdsSource) -> seqio.Task:
    """Return the Task of a data set whose examples have the task's own fields, texts not tokenised."""
    plain = seqio.PassThroughVocabulary(0)
    tensors = {name: TYPES[what](spec) for name, what in spec.form.wanted.items()}
    return seqio.Task(
        PREFIX + "rows_" + "".join(c if c.isalnum() else "_" for c in source.name),
        source=_source(source),
        preprocessors=[functools.partial(_take, fields=source.fields)],
        output_features={
            name: seqio.Feature(plain, add_eos=False, dtype=found.dtype, rank=found.shape.rank)
            for name, found in tensors.items()
        },
    )


def _source(source: TfdsSource) -> seqio.TfdsDataSource:
    return seqio.TfdsDataSource(tfds_name=source.name, splits=dict(source.splits))


def _take(dataset: tf.data.Dataset, fields: Mapping[str, str]) -> tf.data.Dataset:
    """Return the task's fields of TFDS's examples."""

    def row(example: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        return {name: _feature(example, path) for name, path in fields.items()}

    return dataset.map(row, num_parallel_calls=tf.data.AUTOTUNE)


def _feature(example: Any, path: str) -> tf.Tensor:
    for part in path.split("/"):
        example = example[int(part)] if part.isdecimal() else example[part]
    return example


# Rows, for `headjax prepare`.


def tfds_rows(spec: TaskSpec) -> Rows:
    """Return the rows of a task from TFDS, which downloads and prepares missing data sets.

    Raises:
        DataError: TFDS has no data set of the task, or cannot be reached.
    """
    if not spec.sources:
        raise DataError(f"{spec.name}: TensorFlow Datasets has no data set of it; name local files with --source")
    tasks = [(row_task(spec, source), source) for source in spec.sources]
    splits: dict[Split, RowSource] = {}
    for split in SPLITS:
        some = [(task, source) for task, source in tasks if split in source.splits]
        if some:
            splits[split] = RowSource(functools.partial(_read, some, split), _count(some, split))
    return splits


def _read(tasks: Sequence[tuple[seqio.Task, TfdsSource]], split: Split) -> Iterator[Row]:
    for task, source in tasks:
        place = f"{source.name}: {source.splits[split]}"
        with _asking(place):
            _check_network(task, source)
            for number, values in enumerate(task.get_dataset(split=split, shuffle=False).as_numpy_iterator()):
                yield Row(f"{place}: example {number}", {name: _plain(value) for name, value in values.items()})


@contextlib.contextmanager
def _asking(place: str) -> Iterator[None]:
    """Turn all errors of TFDS and its downloads into a `DataError` that starts with the place."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"{place}: cannot be read from TFDS ({reason})") from error


def _check_network(task: seqio.Task, source: TfdsSource) -> None:
    """Raise `DataError` if a data set is neither stored nor reachable; TFDS itself would retry for minutes."""
    builder = task.source.tfds_dataset.builder
    if builder.is_prepared() or urllib.request.getproxies():
        return
    try:
        socket.getaddrinfo(HOST, 443)
    except OSError:
        where = builder.data_path
        raise DataError(f"{source.name}: not in {where}, and no network; name local files with --source") from None


def _count(tasks: Sequence[tuple[seqio.Task, TfdsSource]], split: Split) -> int:
    """Return the number of rows, for the progress bar; 0 if TFDS has not yet prepared the data.

    Raises:
        DataError: TFDS has the data, but not this split.
    """
    count = 0
    for task, source in tasks:
        with _asking(f"{source.name}: {source.splits[split]}"):
            if not task.source.tfds_dataset.builder.is_prepared():
                return 0
            count += task.num_input_examples(split) or 0
    return count


def _plain(value: Any) -> Any:
    """Return a NumPy value of TensorFlow's as a row holds it."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if getattr(value, "ndim", 0) == 1:
        return tuple(item.decode("utf-8") for item in value)
    return value.item() if getattr(value, "ndim", 1) == 0 else value


# Text to text, for T5X and others that train on seqio's tasks.


def text_task(spec: TaskSpec, vocabulary: seqio.Vocabulary, name: str = "") -> seqio.Task:
    """Return a task as text to text, tokenised and ended, with its metrics.

    Args:
        spec: the task.
        vocabulary: of `inputs` and `targets`.
        name: name of the seqio Task; empty for `headjax_NAME`.

    Raises:
        DataError: a task that cannot be written as text, or that TFDS does not have as one data set.
    """
    if not is_text_to_text(spec):
        raise DataError(f"{spec.name}: not a task of text to text with one data set in TFDS")
    (source,), names = spec.sources, ("inputs", "targets")
    is_labelled = isinstance(spec.form, LabelledForm)
    return seqio.Task(
        name or PREFIX + spec.name,
        source=_source(source),
        preprocessors=[
            functools.partial(_take, fields=source.fields),
            functools.partial(_mapped, function=functools.partial(as_text, spec)),
            functools.partial(seqio.preprocessors.tokenize, copy_pretokenized=False),
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features={
            one: seqio.Feature(vocabulary, add_eos=True, dtype=tf.int32)
            for one in (names[1:] if isinstance(spec.form, LanguageForm) else names)
        },
        postprocess_fn=functools.partial(label_of, spec) if is_labelled else None,
        metric_fns=[_metric(one) for one in spec.metrics] if is_labelled else [],
    )


def is_text_to_text(spec: TaskSpec) -> bool:
    """Return whether a task can be written as text to text, and is one data set of TFDS."""
    return len(spec.sources) == 1 and isinstance(
        spec.form, LanguageForm | TranslationForm | QuestionForm | LabelledForm
    )


def _mapped(dataset: tf.data.Dataset, function: Callable[[Tensors], Tensors]) -> tf.data.Dataset:
    return dataset.map(function, num_parallel_calls=tf.data.AUTOTUNE)


def as_text(spec: TaskSpec, row: Tensors) -> dict[str, tf.Tensor]:
    """Write a row as T5 has it: `sst2 sentence1: a film` and `positive`; numbers are rounded to multiples of 0.2."""
    form = spec.form
    if isinstance(form, LanguageForm):
        return {"targets": row["text"]}
    if isinstance(form, TranslationForm):
        return {"inputs": row["source"], "targets": row["target"]}
    if isinstance(form, QuestionForm):
        asked = tf.strings.join(["question: ", row["question"], " context: ", row["context"]])
        return {"inputs": asked, "targets": row["answers"][0]}
    parts = [spec.name, " sentence1: ", row["text"]]
    parts += [" sentence2: ", row["second"]] if "second" in row else []
    if form.label_names:
        answer = tf.gather(tf.constant(form.label_names), row["label"])
    else:
        answer = tf.strings.as_string(tf.round(tf.cast(row["label"], tf.float32) * 5) / 5, precision=1)
    return {"inputs": tf.strings.join(parts), "targets": answer}


def label_of(spec: TaskSpec, text: str, **_: Any) -> float:
    """Return the class that a text names, `WRONG` if it names none; in a regression the number, or `WRONG`."""
    if spec.form.label_names:
        found = ClassIndex(spec.form.label_names).find(text)
        return WRONG if found is None else found
    try:
        return float(text)
    except ValueError:
        return WRONG


def _metric(name: str) -> Callable[[Sequence[float], Sequence[float]], Mapping[str, float]]:
    formula = getattr(formulas, name)

    def metric(targets: Sequence[float], predictions: Sequence[float]) -> Mapping[str, float]:
        return {name: formula(predictions, targets)}

    metric.__name__ = name
    return metric


for _spec in filter(is_text_to_text, TASKS.values()):
    if PREFIX + _spec.name not in seqio.TaskRegistry.names():
        seqio.TaskRegistry.add_provider(PREFIX + _spec.name, text_task(_spec, seqio.ByteVocabulary()))
