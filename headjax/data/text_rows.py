"""Rows of files that are no tables: lines, documents, pairs of sentences, questions, TFRecords."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headjax.core.errors import DataError
from headjax.core.fields import unknown_name
from headjax.data.documents import Document
from headjax.data.files import packed_or_plain, read_lines, source_of
from headjax.data.image_rows import pixels
from headjax.data.rows import Row, Split
from headjax.data.tables import is_table, table_rows
from headjax.storage.files import check_characters, parse_json, read_text


def document_rows(found: Mapping[Split, Sequence[Document]]) -> dict[Split, list[Row]]:
    """Return documents as rows."""
    return {name: [Row(one.name, {"text": one.text}) for one in some] for name, some in found.items()}


def text_lines(file: Path) -> Iterator[Row]:
    """Yield every line of a text file that is not blank."""
    for number, line in enumerate(read_lines(file), start=1):
        if line.strip():
            yield Row(f"{file}: line {number}", {"text": line.strip()})


def translation_pairs(path: str, source: str, target: str) -> Iterator[Row]:
    """Yield the pairs of two line-aligned files, or of a table; pairs with an empty side are skipped."""
    pairs = (_pair_table if is_table(path) else _aligned)(path, source, target)
    number = -1
    for number, pair in enumerate(pair for pair in pairs if all(side.strip() for side in pair)):
        yield Row(f"{path}: pair {number}", {"source": pair[0].strip(), "target": pair[1].strip()})
    if number < 0:
        raise DataError(f"{path}: no line has text on both sides")


def _pair_table(path: str, source: str, target: str) -> Iterator[tuple[str, str]]:
    rows = table_rows(path, {"source": source, "target": target})
    return ((row.values["source"], row.values["target"]) for row in rows)


def _aligned(path: str, source: str, target: str) -> Iterator[tuple[str, str]]:
    files = [_file_of(f"{path}.{language}") for language in (source, target)]
    for number, (first, second) in enumerate(itertools.zip_longest(*map(read_lines, files))):
        if first is None or second is None:
            shorter, longer = files if first is None else files[::-1]
            raise DataError(f"{shorter}: {number:,} lines, but {longer.name} has more")
        yield first, second


def _file_of(path: str) -> Path:
    file = packed_or_plain(source_of(path))
    if file is None:
        raise DataError(f"{path}: no such file, packed or not")
    return file


def read_questions(path: str | Path) -> list[Row]:
    """Return the questions of a SQuAD v1.1 file, with the fields of `QuestionForm`."""
    file = source_of(path)
    whole = parse_json(read_text(file), str(file))
    try:
        articles = whole["data"]
        found = [
            _question(file, paragraph["context"], entry)
            for article in articles
            for paragraph in article["paragraphs"]
            for entry in paragraph["qas"]
        ]
    except KeyError as error:
        raise DataError(f"{file}: not in SQuAD's format ({error} is missing)") from None
    except (TypeError, AttributeError) as error:
        raise DataError(f"{file}: not in SQuAD's format ({type(error).__name__}: {error})") from None
    if not found:
        raise DataError(f"{file}: no questions")
    return found


def _question(file: Path, context: str, entry: Mapping[str, Any]) -> Row:
    answers, place = entry["answers"], f"{file}: question {entry['id']}"
    # The order of the fields is part of the hash of prepared rows.
    values = {
        "question": check_characters(entry["question"].strip(), place),
        "id": entry["id"],
        "context": check_characters(context, place),
        "answers": tuple(check_characters(one["text"], place) for one in answers),
        "start": operator.index(answers[0]["answer_start"]) if answers else 0,
    }
    return Row(place, values)


TFRECORD = ".tfrecord"


def read_tfrecord(
    file: Path, fields: Mapping[str, str], feature: Callable[[str, Container[str]], str] = lambda field, there: field
) -> Iterator[Row]:
    """Yield the rows of a TFRecord of `tf.train.Example`s; TensorFlow reads it. A file named `*.gz` is unpacked."""
    try:
        import tensorflow as tf
    except ImportError:
        raise DataError(f"{file}: TFRecords are read by TensorFlow: pip install '.[data]' from a checkout") from None

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
            values[field] = _feature_value(features[name], what, f"{place}: feature {name}")
        yield Row(place, values)
        number += 1
    if not number:
        raise DataError(f"{file}: no records")


def _feature_value(feature: Any, what: str, place: str) -> Any:
    kind = feature.WhichOneof("kind")
    values = list(getattr(feature, kind).value) if kind else []
    if what == "texts":
        return tuple(_decoded(value, place) for value in values)
    if len(values) != 1:
        raise DataError(f"{place}: expected one value, got {len(values)}")
    if what == "image":
        return pixels(values[0], place)
    return _decoded(values[0], place) if what == "text" or isinstance(values[0], bytes) else values[0]


def _decoded(value: Any, place: str) -> str:
    if not isinstance(value, bytes):
        raise DataError(f"{place}: expected text, got {value!r}")
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: byte offset {error.start}: not UTF-8 ({error.reason})") from None
