"""Specifications of tasks, and the rows of a task from the user's own files."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from headjax.core.errors import DataError
from headjax.core.serialize import unknown_name
from headjax.data.documents import text_hash
from headjax.data.files import find_files, local_file
from headjax.data.forms import Form
from headjax.data.image_rows import pixels
from headjax.data.rows import Row, Rows, RowSource, Split
from headjax.data.tables import SUFFIXES, header, table_rows


@dataclasses.dataclass(frozen=True)
class TfdsSource:
    """A data set of TensorFlow Datasets.

    Attributes:
        name: name with config and version: `glue/sst2:2.0.0`.
        splits: for each split of the task, the split of the data set or a slice of it.
        fields: for each field of a row, the feature of the data set; `answers/text` is a nested feature, and
            `answers/answer_start/0` its first entry.
    """

    name: str
    splits: Mapping[Split, str]
    fields: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """Description of a task before it is prepared.

    Attributes:
        name: its name.
        form: form of its rows, unless another is asked for.
        local: function from (specification, paths of local files) to rows.
        sources: data sets of TFDS, read one after another; empty if TFDS has none.
        vocabulary: origin of the tokenizer: `given` by the user, or `bpe`, learned if none is given.
        vocab_size: number of tokens to learn.
        files: formats of local files besides tables and TFRecords of its fields, in words.
        metrics: names of metrics of `headjax.evaluation.measures`, the headline first; empty takes the form's usual
            ones.
        columns: for a field, further names of its column in tables and TFRecords, besides its names in TFDS.
    """

    name: str
    form: Form
    local: Callable[[TaskSpec, Sequence[Path]], Rows]
    sources: tuple[TfdsSource, ...] = ()
    vocabulary: Literal["given", "bpe", "none"] = "given"
    vocab_size: int = 0
    files: str = ""
    metrics: tuple[str, ...] = ()
    columns: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def column(self, field: str, there: Container[str]) -> str:
        """Return the name of a field's column among those of a table; the field's own name if none is there."""
        names = (field, *self.columns.get(field, ()), *(source.fields.get(field, field) for source in self.sources))
        return next((name for name in names if name in there), field)


HELD_OUT = 0.05
"""Approximate share of the rows held out if no file is named for validation."""

TRAIN, VALIDATION = frozenset({"train"}), frozenset({"validation", "valid", "val", "dev"})
"""Words in file names that assign a file to a split."""


def local_rows(spec: TaskSpec, paths: Sequence[Path]) -> Rows:
    """Return the rows of tables (TSV, CSV, JSON, JSON lines) and TFRecords with the task's fields (`TaskSpec.column`).

    A file or folder belongs to the split whose word (`TRAIN`, `VALIDATION`) is in its name. Without a file for
    validation, some rows are held out by the hash of their text. All files of a task without training data are
    evaluated on.

    Raises:
        DataError: no file, or one that cannot be read.
    """
    return rows_of(spec, split_files(paths, ROW_SUFFIXES), functools.partial(read_rows, spec))


def rows_of(spec: TaskSpec, files: Mapping[Split, Sequence[Path]], read: Callable[[Path], Iterable[Row]]) -> Rows:
    """Return the rows of files, which are read anew for each iteration.

    Args:
        spec: the task.
        files: by split; without a file for validation, some rows are held out.
        read: reads the rows of one file.

    Raises:
        DataError: too few rows to hold some out.
    """

    def rows(splits: Sequence[Split]) -> Iterator[Row]:
        return itertools.chain.from_iterable(read(file) for split in splits for file in files[split])

    def side(held: bool) -> RowSource:
        return RowSource(lambda: (row for row in rows(["train"]) if is_held_out(row) is held))

    if only_evaluated(spec):
        return {"validation": RowSource(lambda: rows(["train", "validation"]))}
    if not files["validation"]:
        _check_both(files["train"][0], rows(["train"]))
        return {"train": side(False), "validation": side(True)}
    splits: list[Split] = ["train", "validation"] if files["train"] else ["validation"]
    return {split: RowSource(functools.partial(rows, [split])) for split in splits}


def is_held_out(row: Row) -> bool:
    """Return whether a row is held out, by the hash of its first field."""
    return text_hash(str(next(iter(row.values.values())))) < HELD_OUT


def _check_both(file: Path, rows: Iterable[Row]) -> None:
    """Read until there is a row on each side of the division.

    Raises:
        DataError: one side has no row.
    """
    seen = {False: 0, True: 0}
    for row in rows:
        seen[is_held_out(row)] += 1
        if all(seen.values()):
            return
    raise DataError(f"{file}: {sum(seen.values())} rows are too few to hold some out; name a file for validation")


def only_evaluated(spec: TaskSpec) -> bool:
    """Return whether a task has no training data."""
    return bool(spec.sources) and all("train" not in source.splits for source in spec.sources)


def split_files(paths: Sequence[Path], suffixes: Iterable[str]) -> dict[Split, list[Path]]:
    """Return the files of the paths that have one of the suffixes (also with `.gz`), by split.

    Files whose names name no split are for training, unless other files are named `train`. A single file is for
    training, whatever its name. Files named `test` are left out if there are others.

    Raises:
        DataError: no such file.
    """
    wanted = tuple(suffixes)
    named: dict[Split, list[Path]] = {"train": [], "validation": []}
    others: list[Path] = []
    tests: list[Path] = []
    for path in paths:
        inside = sorted(path.rglob("*")) if path.is_dir() else find_files(path)
        for file in (file for file in inside if file.is_file() and has_suffix(file, wanted)):
            words = set(re.split(r"[^a-z0-9]+", file.name.lower()))
            words |= {file.parent.name.lower()} if path.is_dir() and file.parent != path else set()
            if len(paths) == 1 and file == path:
                others.append(file)
            elif words & VALIDATION:
                named["validation"].append(file)
            elif words & TRAIN:
                named["train"].append(file)
            else:
                (tests if "test" in words else others).append(file)
    if not named["train"]:
        named["train"] = others or ([] if named["validation"] else tests)
    if not any(named.values()):
        raise DataError(f"{paths[0]}: no file whose name ends in {', '.join(wanted)}")
    return named


def has_suffix(file: Path, suffixes: tuple[str, ...]) -> bool:
    """Return whether a file's name ends in one of the suffixes, or in one with `.gz`; TFRecords may be numbered."""
    name = re.sub(r"(\.tfrecord)[-.]\d+-of-\d+$", r"\1", file.name.removesuffix(".gz"))
    return name.endswith(suffixes)


def read_rows(spec: TaskSpec, file: Path) -> Iterator[Row]:
    """Yield the rows of one table or TFRecord.

    Raises:
        DataError: a file that cannot be read; the message starts with it and names the line.
    """
    fields = spec.form.wanted
    if has_suffix(file, (TFRECORD,)):
        yield from read_tfrecord(file, fields, spec.column)
        return
    names = header(file)
    for row in table_rows(file, {field: spec.column(field, names) for field in fields}):
        yield Row(row.place, {name: _cell(value, fields[name], row.place) for name, value in row.values.items()})


def _cell(value: str, what: str, place: str) -> Any:
    if what == "image":
        raise DataError(f"{place}: a table holds no images; give a folder of them, or TFRecords")
    if what == "label" and value.isdecimal():
        return int(value)
    return value


TFRECORD = ".tfrecord"
ROW_SUFFIXES = (*SUFFIXES, TFRECORD)
"""Suffixes of files of rows."""


def read_tfrecord(
    file: Path, fields: Mapping[str, str], feature: Callable[[str, Container[str]], str] = lambda field, there: field
) -> Iterator[Row]:
    """Yield the rows of a TFRecord of `tf.train.Example`s; TensorFlow reads it. A file named `*.gz` is unpacked.

    Args:
        file: the file.
        fields: names and types of the fields (see `Form.fields`).
        feature: returns the name of a field's feature among those of a record.

    Raises:
        DataError: TensorFlow is not installed, a file that is cut off or damaged, no example, or a feature that is
            missing or of another type; the message starts with the file and names the record.
    """
    try:
        import tensorflow as tf
    except ImportError:
        raise DataError(f"{file}: TFRecords are read by TensorFlow: pip install '.[data]' from a checkout") from None

    number = 0
    dataset = tf.data.TFRecordDataset(local_file(file), compression_type="GZIP" if file.suffix == ".gz" else "")
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
