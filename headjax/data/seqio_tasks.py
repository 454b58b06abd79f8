"""Rows of TFDS's data sets, and seqio Tasks (Roberts et al. 2022) of the registry's tasks: text to text for T5X.

Imports TensorFlow; no other module does. After `import headjax.data.seqio_tasks`,
`seqio.get_mixture_or_task("headjax_mnli")` is MNLI.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from headjax.core.errors import DataError
from headjax.core.programs import Share
from headjax.data.registry import TASKS
from headjax.data.rows import SPLITS, Row, Rows, RowSource, Split
from headjax.data.spec import TaskSpec, TfdsSource

TARGETS = ("label", "target", "answers")
"""Fields of rows that a model of text to text writes; of other rows it writes the text."""


def register(vocabulary: seqio.Vocabulary | None = None) -> None:
    """Add every task of text that TFDS has to seqio's registry, as `headjax_NAME`, with this vocabulary.

    The features are `inputs` (the task's name and its fields, "mnli text: ... second: ...", nothing for running text)
    and `targets` (the class by name, the number with one digit, the translation, the first answer, or the text). The
    vocabulary is that of bytes unless one is given; another call replaces the tasks.
    """
    feature = seqio.Feature(seqio.ByteVocabulary() if vocabulary is None else vocabulary, add_eos=True)
    for spec in (spec for spec in TASKS.values() if spec.sources and spec.form.reads_text):
        for source, name in zip(spec.sources, (spec.name, *(f"{spec.name}_{i}" for i in range(2, 9))), strict=False):
            seqio.TaskRegistry.remove(f"headjax_{name}")
            take, write = functools.partial(_take, fields=source.fields), functools.partial(_as_text, spec=spec)
            steps = [take, write, seqio.preprocessors.tokenize, seqio.preprocessors.append_eos]
            features = {"inputs": feature, "targets": feature}
            seqio.TaskRegistry.add(f"headjax_{name}", _data_set(source), features, steps)


def _as_text(dataset: tf.data.Dataset, spec: TaskSpec) -> tf.data.Dataset:
    """Return rows as `inputs` and `targets`, both text."""
    written = next((name for name in spec.form.wanted if name in TARGETS), "text")
    read = [name for name, what in spec.form.wanted.items() if what == "text" and name not in (written, "id")]

    def example(row: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        parts = [part for name in read for part in (f" {name}: ", row[name])]
        value = row[written]
        if written == "label":
            names = spec.form.label_names
            value = tf.constant(names)[value] if names else tf.strings.as_string(value, precision=1)
        elif written == "answers":
            value = value[0]
        return {"inputs": tf.strings.join([spec.name, *parts]) if parts else tf.constant(""), "targets": value}

    return dataset.map(example, num_parallel_calls=tf.data.AUTOTUNE)


def _take(dataset: tf.data.Dataset, fields: Mapping[str, str]) -> tf.data.Dataset:
    """Return the task's fields of TFDS's examples, by their paths (`answers/text/0`)."""

    def feature(example: Any, path: str) -> Any:
        for part in path.split("/"):
            example = example[int(part)] if part.isdecimal() else example[part]
        return example

    def row(example: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        return {name: feature(example, path) for name, path in fields.items()}

    return dataset.map(row, num_parallel_calls=tf.data.AUTOTUNE)


def _data_set(source: TfdsSource) -> seqio.TfdsDataSource:
    return seqio.TfdsDataSource(tfds_name=source.name, splits=dict(source.splits))


def tfds_rows(spec: TaskSpec) -> Rows:
    """Return the rows of a task from TFDS, which downloads and prepares missing data sets."""
    splits: dict[Split, RowSource] = {}
    for split in SPLITS:
        if some := [source for source in spec.sources if split in source.splits]:
            splits[split] = RowSource(functools.partial(_read, some, split), _count(some, split))
    return splits


def _read(sources: Sequence[TfdsSource], split: Split, share: Share) -> Iterator[Row]:
    part = seqio.ShardInfo(share.index, share.count) if share.count > 1 else None
    for source in sources:
        place = f"{source.name}: {source.splits[split]}"
        name = "headjax_" + "".join(c if c.isalnum() else "_" for c in source.name)
        take = functools.partial(_take, fields=source.fields)
        with _asking(place):
            # A Task, which also divides data sets that have fewer files than there are hosts.
            task = seqio.Task(name, source=_data_set(source), preprocessors=[take], output_features={})
            examples = task.get_dataset(split=split, shuffle=False, shard_info=part)
            for number, values in enumerate(examples.as_numpy_iterator()):
                yield Row(f"{place}: example {number}", {name: _plain(value) for name, value in values.items()})


def _count(sources: Sequence[TfdsSource], split: Split) -> int:
    """Return the number of rows, for the progress bar; 0 if TFDS has not yet prepared the data."""
    place = ", ".join(f"{source.name}: {source.splits[split]}" for source in sources)
    with _asking(place):
        data_sets = [_data_set(source) for source in sources]
        missing = [data.tfds_dataset.builder for data in data_sets if not data.tfds_dataset.builder.is_prepared()]
        if missing and not urllib.request.getproxies():
            try:
                socket.getaddrinfo("storage.googleapis.com", 443)
            except OSError:  # TFDS itself would try for minutes
                where = missing[0].data_path
                raise DataError(f"{place}: not in {where}, and no network; --source names local files") from None
        return 0 if missing else sum(data.num_input_examples(split) or 0 for data in data_sets)


@contextlib.contextmanager
def _asking(place: str) -> Iterator[None]:
    """Turn all errors of TFDS and its downloads into a `DataError` that starts with the place."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"{place}: cannot be read from TFDS ({reason}); --source names local files") from error


def _plain(value: Any) -> Any:
    """Return a NumPy value of TensorFlow's as a row holds it."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if getattr(value, "ndim", 0) == 1:
        return tuple(item.decode("utf-8") for item in value)
    return value.item() if getattr(value, "ndim", 1) == 0 else value


register()
