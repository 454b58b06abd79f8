"""The tasks as seqio Tasks (Roberts et al. 2022), over TensorFlow Datasets or over local files. Imports TensorFlow."""

from __future__ import annotations

import contextlib
import functools
import socket
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import seqio
import tensorflow as tf

from headjax.core.errors import DataError
from headjax.data.rows import Rows, RowSource, Split, TaskRow
from headjax.data.tasks.seqio_text import text_features, text_preprocessors
from headjax.data.tasks.spec import TaskSpec, TfdsSource
from headjax.tokenizers.tokenizer import Tokenizer

HOST = "storage.googleapis.com"
"""What TFDS asks first when it has not got a data set."""

PREFIX = "headjax_"
"""Before the names of registered tasks, so that they are nobody else's."""


def seqio_tasks(spec: TaskSpec, tokenizer: Tokenizer | None = None) -> list[seqio.Task]:
    """A seqio Task for each of a task's data sets in TFDS; all give rows of the same fields.

    Args:
        spec: the task.
        tokenizer: of `inputs` and `targets` as text-to-text models read them, see `seqio_text`; without one rows have
            the task's own fields, texts not tokenised yet.

    Raises:
        DataError: TFDS has none, or with a tokenizer: the task is none of text to text.
    """
    if not spec.sources:
        raise DataError(f"{spec.name}: TensorFlow Datasets has no data set of it; name local files with --source")
    return [
        seqio.Task(
            _name(spec.name, source.name),
            source=seqio.TfdsDataSource(tfds_name=source.name, splits=dict(source.splits)),
            preprocessors=[functools.partial(_take, fields=source.fields), *_written(spec, tokenizer)],
            output_features=_features(spec, tokenizer),
        )
        for source in spec.sources
    ]


def local_seqio_task(spec: TaskSpec, paths: Sequence[Path], tokenizer: Tokenizer | None = None) -> seqio.Task:
    """The same Task over local files, see `seqio_tasks`.

    Raises:
        DataError: files that cannot be used.
    """
    rows = spec.local(spec, paths)
    signature = _signature(spec)

    def dataset(split: Split, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
        return tf.data.Dataset.from_generator(lambda: _values(rows[split], signature), output_signature=signature)

    known = {split: source.count for split, source in rows.items()}
    counts = known if all(known.values()) else None
    return seqio.Task(
        _name(spec.name, "local"),
        source=seqio.FunctionDataSource(dataset, splits=tuple(rows), num_input_examples=counts),
        preprocessors=_written(spec, tokenizer),
        output_features=_features(spec, tokenizer),
    )


def register(tasks: Sequence[seqio.Task]) -> list[str]:
    """Makes tasks known to seqio (`seqio.get_dataset`) and returns their names."""
    for task in tasks:
        if task.name not in seqio.TaskRegistry.names():
            seqio.TaskRegistry.add_provider(task.name, task)
    return [task.name for task in tasks]


def tfds_rows(spec: TaskSpec) -> Rows:
    """The rows of a task from TFDS, which downloads and prepares what it has not yet.

    Raises:
        DataError: TFDS has none, or cannot be reached.
    """
    tasks = seqio_tasks(spec)
    splits: dict[Split, RowSource] = {}
    for split in ("train", "validation"):
        some = [(task, source) for task, source in zip(tasks, spec.sources, strict=True) if split in source.splits]
        if some:
            splits[split] = RowSource(functools.partial(_read, some, split), _count(some, split))
    return splits


def _read(tasks: Sequence[tuple[seqio.Task, TfdsSource]], split: Split) -> Iterator[TaskRow]:
    for task, source in tasks:
        place = f"{source.name}: {source.splits[split]}"
        with _asking(place):
            _check_network(task, source)
            for number, values in enumerate(task.get_dataset(split=split, shuffle=False).as_numpy_iterator()):
                yield TaskRow(f"{place}: example {number}", {name: _plain(value) for name, value in values.items()})


@contextlib.contextmanager
def _asking(place: str) -> Iterator[None]:
    """Turns whatever TFDS raises, its downloads' errors among them, into a `DataError` that starts with the place."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"{place}: cannot be read from TFDS ({reason})") from error


def _check_network(task: seqio.Task, source: TfdsSource) -> None:
    """Raises `DataError` where a data set is neither there nor to be had; TFDS itself goes on trying for minutes."""
    builder = task.source.tfds_dataset.builder
    if builder.is_prepared() or urllib.request.getproxies():
        return
    try:
        socket.getaddrinfo(HOST, 443)
    except OSError:
        where = builder.data_path
        raise DataError(f"{source.name}: not in {where}, and no network; name local files with --source") from None


def _count(tasks: Sequence[tuple[seqio.Task, TfdsSource]], split: Split) -> int:
    """Return the number of rows, for the progress bar; 0 where TFDS has not yet got the data, and so not counted it.

    Raises:
        DataError: TFDS has the data, but cannot say how much of it there is (a split that it does not know).
    """
    count = 0
    for task, source in tasks:
        with _asking(f"{source.name}: {source.splits[split]}"):
            if not task.source.tfds_dataset.builder.is_prepared():
                return 0
            count += task.num_input_examples(split) or 0
    return count


def _name(*parts: str) -> str:
    """A name as seqio allows them."""
    return PREFIX + "_".join("".join(c if c.isalnum() else "_" for c in part) for part in parts)


TYPES: Mapping[str, Callable[[TaskSpec], tf.TensorSpec]] = {
    "text": lambda spec: tf.TensorSpec((), tf.string),
    "texts": lambda spec: tf.TensorSpec((None,), tf.string),
    "integer": lambda spec: tf.TensorSpec((), tf.int32),
    "label": lambda spec: tf.TensorSpec((), _label_type(spec)),
    "image": lambda spec: tf.TensorSpec((None, None, None), tf.uint8),
}
"""What fields are as tensors."""


def _label_type(spec: TaskSpec) -> tf.DType:
    return tf.int64 if spec.form.label_names else tf.float32


def _signature(spec: TaskSpec) -> dict[str, tf.TensorSpec]:
    return {name: TYPES[what](spec) for name, what in spec.form.wanted.items()}


def _written(spec: TaskSpec, tokenizer: Tokenizer | None) -> list[Callable[..., Any]]:
    """What comes after a row's fields."""
    return [] if tokenizer is None else text_preprocessors(spec)


def _features(spec: TaskSpec, tokenizer: Tokenizer | None) -> dict[str, seqio.Feature]:
    """The fields as seqio's features; without a tokenizer their texts are as they are, for `headjax prepare`."""
    if tokenizer is not None:
        return text_features(spec, tokenizer)
    plain = seqio.PassThroughVocabulary(0)
    return {
        name: seqio.Feature(plain, add_eos=False, dtype=found.dtype, rank=found.shape.rank)
        for name, found in _signature(spec).items()
    }


def _take(dataset: tf.data.Dataset, fields: Mapping[str, str]) -> tf.data.Dataset:
    """Our fields of TFDS's examples."""

    def row(example: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        return {name: _feature(example, path) for name, path in fields.items()}

    return dataset.map(row, num_parallel_calls=tf.data.AUTOTUNE)


def _feature(example: Any, path: str) -> tf.Tensor:
    for part in path.split("/"):
        example = example[int(part)] if part.isdecimal() else example[part]
    return example


def _values(source: RowSource, signature: Mapping[str, tf.TensorSpec]) -> Iterator[dict[str, Any]]:
    for row in source.rows():
        yield {
            name: list(row.values[name]) if isinstance(row.values[name], tuple) else row.values[name]
            for name in signature
        }


def _plain(value: Any) -> Any:
    """A NumPy value of TensorFlow's as a row holds it."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if getattr(value, "ndim", 0) == 1:
        return tuple(item.decode("utf-8") for item in value)
    return value.item() if getattr(value, "ndim", 1) == 0 else value
