"""TFRecord files of `tf.train.Example`s; reading them takes TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import Any

from headjax.core.errors import DataError
from headjax.core.serialize import unknown_name
from headjax.data.image_rows import pixels
from headjax.data.rows import TaskRow


def read_tfrecord(
    file: Path, fields: Mapping[str, str], feature: Callable[[str, Container[str]], str] = lambda field, there: field
) -> Iterator[TaskRow]:
    """The fields of every example in a file; one named `*.gz` is unpacked.

    Args:
        file: the file.
        fields: what is read, and what it holds (see `Form.fields`).
        feature: the name of a field's feature among those that a record has.

    Raises:
        DataError: TensorFlow is not installed, a file that is cut off or damaged, no example, or a feature that is
            missing or of another type; the message starts with the file and names the record.
    """
    try:
        import tensorflow as tf
    except ImportError:
        raise DataError(f"{file}: TFRecords are read by TensorFlow: pip install 'headjax[data]'") from None

    number = 0
    dataset = tf.data.TFRecordDataset(str(file), compression_type="GZIP" if file.suffix == ".gz" else "")
    records = dataset.as_numpy_iterator()
    while True:
        place = f"{file}: record {number}"
        try:
            data = next(records)
            features = tf.train.Example.FromString(data).features.feature
        except StopIteration:
            break
        except tf.errors.OpError as error:
            known = re.search(r"(truncated|corrupted) record", error.message)
            reason = known[0] if known else f"cannot be read ({' '.join(error.message.split())})"
            raise DataError(f"{place}: {reason}") from None
        except Exception as error:  # the message library's own DecodeError
            raise DataError(f"{place}: not a tf.train.Example ({error})") from None
        values = {}
        for field, what in fields.items():
            name = feature(field, features)
            if name not in features:
                raise DataError(f"{place}: {unknown_name('feature', name, features)}")
            values[field] = _value(features[name], what, f"{place}: feature {name}")
        yield TaskRow(place, values)
        number += 1
    if not number:
        raise DataError(f"{file}: no records")


def _value(feature: Any, what: str, place: str) -> Any:
    """A feature's value as a row holds it."""
    kind = feature.WhichOneof("kind")
    values = list(getattr(feature, kind).value) if kind else []
    if what == "texts":
        return tuple(_text(value, place) for value in values)
    if len(values) != 1:
        raise DataError(f"{place}: expected one value, got {len(values)}")
    if what == "image":
        return pixels(values[0], place)
    return _text(values[0], place) if what == "text" or isinstance(values[0], bytes) else values[0]


def _text(value: Any, place: str) -> str:
    if not isinstance(value, bytes):
        raise DataError(f"{place}: expected text, got {value!r}")
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: byte offset {error.start}: not UTF-8 ({error.reason})") from None
