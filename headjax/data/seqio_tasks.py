"""The tasks as seqio Tasks (Roberts et al. 2022), with TensorFlow Datasets or local files. Imports TensorFlow."""

from __future__ import annotations

import contextlib
import functools
import socket
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from headjax.core.errors import DataError
from headjax.data.forms.labelled import LabelledForm
from headjax.data.forms.language import LanguageForm, TranslationForm
from headjax.data.forms.questions import QuestionForm
from headjax.data.rows import Row, Rows, RowSource, Split
from headjax.data.task_spec import TaskSpec, TfdsSource
from headjax.tokenizers.tokenizer import Tokenizer

Tensors = Mapping[str, tf.Tensor]
"""The fields of a row as tensors."""


class TokenizerVocabulary(seqio.Vocabulary):
    """A tokenizer as seqio's vocabulary, which pads with 0 whatever token that is.

    Args:
        tokenizer: a tokenizer with an end token.

    Raises:
        DataError: the tokenizer has no end token.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self._end = tokenizer.special_id("eos_token")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenizerVocabulary) and other.tokenizer == self.tokenizer

    def __hash__(self) -> int:
        return hash(self.tokenizer)

    @property
    def eos_id(self) -> int:
        """The end token's id."""
        return self._end

    @property
    def unk_id(self) -> int | None:
        """The id of unknown text; None if the tokenizer encodes every text."""
        return self.tokenizer.special_id("unk_token") if "unk_token" in dict(self.tokenizer.special) else None

    @property
    def _base_vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    def _encode(self, s: str) -> list[int]:
        found: list[int] = self.tokenizer.encode([s])[0].tolist()
        return found

    def _decode(self, ids: Iterable[int]) -> str:
        return self.tokenizer.decode([number for number in ids if number != self._end])

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        ids = tf.numpy_function(lambda text: np.asarray(self._encode(text.decode()), np.int32), [s], tf.int32)
        ids.set_shape([None])
        return ids

    def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        rows = tf.reshape(ids, [-1, tf.shape(ids)[-1]])
        texts = tf.map_fn(
            lambda row: tf.numpy_function(self.decode, [row], tf.string), rows, fn_output_signature=tf.string
        )
        return tf.reshape(texts, tf.shape(ids)[:-1])


def text_features(spec: TaskSpec, tokenizer: Tokenizer) -> dict[str, seqio.Feature]:
    """Return the features `inputs` and `targets`, or only `targets` for language models, ended by the end token.

    Raises:
        DataError: a task that cannot be written as text, or a tokenizer without an end token.
    """
    names = ("targets",) if isinstance(spec.form, LanguageForm) else ("inputs", "targets")
    text_writer(spec)
    vocabulary = TokenizerVocabulary(tokenizer)
    return {name: seqio.Feature(vocabulary, add_eos=True, dtype=tf.int32) for name in names}


def text_preprocessors(spec: TaskSpec) -> list[Callable[..., Any]]:
    """Return the preprocessors from a task's fields to token ids: text as T5 has it, tokenised, cut, ended."""
    write = text_writer(spec)
    return [
        lambda dataset: dataset.map(write, num_parallel_calls=tf.data.AUTOTUNE),
        functools.partial(seqio.preprocessors.tokenize, copy_pretokenized=False),
        seqio.preprocessors.append_eos_after_trim,
    ]


def text_writer(spec: TaskSpec) -> Callable[[Tensors], dict[str, tf.Tensor]]:
    """Return the function that writes a row as text: `sst2 sentence1: a film` and `positive`.

    Raises:
        DataError: a task that cannot be written as text.
    """
    form, name = spec.form, spec.name
    if isinstance(form, LanguageForm):
        return lambda row: {"targets": row["text"]}
    if isinstance(form, TranslationForm):
        return lambda row: {"inputs": row["source"], "targets": row["target"]}
    if isinstance(form, QuestionForm):
        return lambda row: {
            "inputs": tf.strings.join(["question: ", row["question"], " context: ", row["context"]]),
            "targets": row["answers"][0],
        }
    if isinstance(form, LabelledForm):
        return functools.partial(_labelled, name, form.classes, ("sentence1", "sentence2")[: 1 + form.pairs])
    raise DataError(f"{name}: not a task of text to text")


def _labelled(name: str, classes: Sequence[str], words: Sequence[str], row: Tensors) -> dict[str, tf.Tensor]:
    """Write a row with its class by name, or its number rounded to a multiple of 0.2."""
    texts = [row["text"], row["second"]] if len(words) == 2 else [row["text"]]
    parts = [part for word, text in zip(words, texts, strict=True) for part in (f" {word}: ", text)]
    if classes:
        answer = tf.gather(tf.constant(list(classes)), row["label"])
    else:
        answer = tf.strings.as_string(tf.round(row["label"] * 5.0) / 5.0, precision=1)
    return {"inputs": tf.strings.join([name, *parts]), "targets": answer}


HOST = "storage.googleapis.com"
"""Host that TFDS asks first for a data set that it does not have."""

PREFIX = "headjax_"
"""Prefix of the names of registered tasks, against collisions."""


def seqio_tasks(spec: TaskSpec, tokenizer: Tokenizer | None = None) -> list[seqio.Task]:
    """Return a seqio Task for each of a task's data sets in TFDS; all give rows of the same fields.

    Args:
        spec: the task.
        tokenizer: tokenizer of `inputs` and `targets` for text-to-text models (Raffel et al. 2020); None gives the
            task's own fields, texts not tokenised.

    Raises:
        DataError: TFDS has no data set of the task; with a tokenizer also a task that cannot be written as text.
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
    """Return the Task of local files, see `seqio_tasks`.

    Raises:
        DataError: files that cannot be read.
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
    """Register tasks with seqio (`seqio.get_dataset`) and return their names."""
    for task in tasks:
        if task.name not in seqio.TaskRegistry.names():
            seqio.TaskRegistry.add_provider(task.name, task)
    return [task.name for task in tasks]


def tfds_rows(spec: TaskSpec) -> Rows:
    """Return the rows of a task from TFDS, which downloads and prepares missing data sets.

    Raises:
        DataError: TFDS has no data set of the task, or cannot be reached.
    """
    tasks = seqio_tasks(spec)
    splits: dict[Split, RowSource] = {}
    for split in ("train", "validation"):
        some = [(task, source) for task, source in zip(tasks, spec.sources, strict=True) if split in source.splits]
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


def _name(*parts: str) -> str:
    """Return a name of the characters that seqio allows."""
    return PREFIX + "_".join("".join(c if c.isalnum() else "_" for c in part) for part in parts)


TYPES: Mapping[str, Callable[[TaskSpec], tf.TensorSpec]] = {
    "text": lambda spec: tf.TensorSpec((), tf.string),
    "texts": lambda spec: tf.TensorSpec((None,), tf.string),
    "integer": lambda spec: tf.TensorSpec((), tf.int32),
    "label": lambda spec: tf.TensorSpec((), _label_type(spec)),
    "image": lambda spec: tf.TensorSpec((None, None, None), tf.uint8),
}
"""Tensors of the fields by their type."""


def _label_type(spec: TaskSpec) -> tf.DType:
    return tf.int64 if spec.form.label_names else tf.float32


def _signature(spec: TaskSpec) -> dict[str, tf.TensorSpec]:
    return {name: TYPES[what](spec) for name, what in spec.form.wanted.items()}


def _written(spec: TaskSpec, tokenizer: Tokenizer | None) -> list[Callable[..., Any]]:
    """Return the preprocessors after a row's fields."""
    return [] if tokenizer is None else text_preprocessors(spec)


def _features(spec: TaskSpec, tokenizer: Tokenizer | None) -> dict[str, seqio.Feature]:
    """Return the fields as seqio's features; without a tokenizer texts stay texts, for `headjax prepare`."""
    if tokenizer is not None:
        return text_features(spec, tokenizer)
    plain = seqio.PassThroughVocabulary(0)
    return {
        name: seqio.Feature(plain, add_eos=False, dtype=found.dtype, rank=found.shape.rank)
        for name, found in _signature(spec).items()
    }


def _take(dataset: tf.data.Dataset, fields: Mapping[str, str]) -> tf.data.Dataset:
    """Return the task's fields of TFDS's examples."""

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
    """Return a NumPy value of TensorFlow's as a row holds it."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if getattr(value, "ndim", 0) == 1:
        return tuple(item.decode("utf-8") for item in value)
    return value.item() if getattr(value, "ndim", 1) == 0 else value
