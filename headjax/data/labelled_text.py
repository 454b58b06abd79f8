"""Sentences and pairs of sentences with labels, from the user's own tables."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headjax.core.class_names import MISSING, class_numbers, find_class, reorder, tell_nothing
from headjax.core.errors import DataError, require, require_positive
from headjax.core.serialize import kind, unknown_name
from headjax.data.documents import text_hash
from headjax.data.forms import Form, LabelledForm, SimilarityForm
from headjax.data.forms.labelled import finite
from headjax.data.loading import Reading, load_rows
from headjax.data.rows import Split, TaskRow
from headjax.data.tables import Row, read_table
from headjax.data.task import DataConfig, TaskData
from headjax.data.text_data import vocabulary_tokenizer
from headjax.data.text_files import find_files
from headjax.tokenizers.tokenizer import Tokenizer


class Tables(NamedTuple):
    """The rows of both splits: (text, second text if there are pairs, label)."""

    train: list[Row]
    validation: list[Row]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledText(DataConfig):
    """Base of the tables of labelled text; formats and columns are those of `headjax.data.tables.read_table`.

    Attributes:
        path: file with the examples to train on, or a glob pattern; empty for none.
        validation: file with examples to evaluate on, or a glob pattern; empty holds some of `path` out. Rows whose
            first text is the same are then held out together.
        validation_fraction: how much of `path` is held out where there is no `validation`, about.
        text: column of the text.
        second: column of the second text of a pair; empty for single texts.
        label: column of the label.
        max_length: tokens of an example, special ones included; what is longer is cut.
        vocabulary: a BERT's `vocab.txt`, to train a model that brings no tokenizer.
        buckets: lengths that training batches are padded to, besides the longest example's; one compilation each.
    """

    path: str = ""
    validation: str = ""
    validation_fraction: float = 0.1
    text: str = "sentence"
    second: str = ""
    label: str = "label"
    max_length: int = 128
    vocabulary: str = ""
    buckets: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require_positive(self, "max_length")
        require(bool(self.path or self.validation), "path", "name a file to train on, one to evaluate on, or both")
        fraction = self.validation_fraction
        require(0.0 < fraction < 1.0, "validation_fraction", f"must be within (0, 1), got {fraction}")

    def read(self) -> Tables:
        """The rows of both splits.

        Raises:
            DataError: a file that cannot be used, or too few rows to hold some out.
        """
        columns = [column for column in (self.text, self.second, self.label) if column]
        train, validation = (
            [row for file in (find_files(path) if path else ()) for row in read_table(file, columns)]
            for path in (self.path, self.validation)
        )
        if self.validation:
            return Tables(train, validation)
        out = [text_hash(row.values[0]) < self.validation_fraction for row in train]
        if all(out) or not any(out):
            raise DataError(f"{self.path}: too few rows to hold some of them out; name a validation file")
        return Tables(*([row for row, held in zip(train, out, strict=True) if held is side] for side in (False, True)))

    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        return self.load_measured(tokenizer)

    def load_measured(self, tokenizer: Tokenizer | None, metrics: Sequence[str] = ()) -> TaskData:
        """Return the data with metrics of its own.

        Args:
            tokenizer: see `DataConfig.load`.
            metrics: the headline first; empty takes those that are usual for such labels.
        """
        tables = self.read()
        tokenizer = tokenizer or vocabulary_tokenizer(self.vocabulary)
        rows = self.rows(tables)
        reading = Reading(metrics, self.buckets)
        data = load_rows(self.form(tables), rows, tokenizer, {"text": self.path or self.validation}, reading)
        noted: dict[str, Any] = {split: {**data.info[split], **self.notes(found)} for split, found in rows.items()}
        return data._replace(info={**data.info, **noted})

    @abc.abstractmethod
    def form(self, tables: Tables) -> Form:
        """Return how the rows become examples."""

    def rows(self, tables: Tables) -> dict[Split, list[TaskRow]]:
        """Return the rows with the fields of the form, labels as class numbers or numbers.

        Raises:
            DataError: a label that cannot be used; the message names file and line.
        """
        number = self.numbering(tables)
        fields = ("text", "second") if self.second else ("text",)
        named: dict[Split, list[Row]] = {"train": tables.train, "validation": tables.validation}
        return {
            split: [
                TaskRow(row.place, {**dict(zip(fields, row.values[:-1], strict=True)), "label": number(row)})
                for row in rows
            ]
            for split, rows in named.items()
        }

    @abc.abstractmethod
    def numbering(self, tables: Tables) -> Callable[[Row], float]:
        """Return what gives a row its label as a number.

        Raises:
            DataError: a label that cannot be used; the message names file and line.
        """

    def notes(self, rows: Sequence[TaskRow]) -> Mapping[str, Any]:
        """Return what else to report of a split."""
        return {}


@kind("text_classification")
@dataclasses.dataclass(frozen=True, kw_only=True)
class TextClassification(LabelledText):
    """Text, or pairs of texts, to sort into classes.

    Attributes:
        classes: labels as they stand in the files, in the order of the class numbers; empty takes the labels of the
            training file (of the validation file where there is no other), sorted (as numbers if they all are).
        names: what the classes are called, in the same order; empty calls them what the files do.
    """

    classes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        named = len(self.names) in (0, len(self.classes))
        require(named, "names", f"{len(self.names)} names for {len(self.classes)} classes")

    def for_classes(self, names: Sequence[str]) -> TextClassification:
        if tell_nothing(names):
            return self if self.classes else dataclasses.replace(self, classes=class_numbers(len(names)))
        if not self.classes:
            return dataclasses.replace(self, classes=tuple(names), names=tuple(names))
        own = self.names or self.classes
        places = reorder(names, own)
        if places is None:
            where = self.path or self.validation
            raise DataError(f"{where}: its classes are {', '.join(own)}; the model's are {', '.join(names)}")
        return dataclasses.replace(self, classes=tuple(self.classes[i] for i in places), names=tuple(names))

    def form(self, tables: Tables) -> Form:
        return LabelledForm(
            length=self.max_length, pairs=bool(self.second), classes=tuple(self.names or self.labels(tables))
        )

    def numbering(self, tables: Tables) -> Callable[[Row], float]:
        classes = self.labels(tables)
        found: dict[str, int] = {}

        def number(row: Row) -> float:
            label = row.values[-1]
            if label not in found:
                found[label] = _class_number(row.place, label, classes)
            return found[label]

        return number

    def labels(self, tables: Tables) -> tuple[str, ...]:
        """The labels as they stand in the files, in the order of the class numbers.

        Raises:
            DataError: a row without a label; the message names file and line.
        """
        if self.classes:
            return self.classes
        rows = tables.train or tables.validation
        for row in rows:
            _require_label(row.place, row.values[-1])
        return sorted_labels({row.values[-1] for row in rows})

    def notes(self, rows: Sequence[TaskRow]) -> Mapping[str, Any]:
        return {"classes": np.bincount(np.asarray([row.values["label"] for row in rows], int)).tolist()}


@kind("text_regression")
@dataclasses.dataclass(frozen=True, kw_only=True)
class TextRegression(LabelledText):
    """Text, or pairs of texts, with a number each.

    Attributes:
        scale: the label that counts as 1.
    """

    scale: float = 1.0

    def form(self, tables: Tables) -> Form:
        return LabelledForm(length=self.max_length, pairs=bool(self.second))

    def numbering(self, tables: Tables) -> Callable[[Row], float]:
        return lambda row: finite(row.place, row.values[-1]) / self.scale


@kind("text_similarity")
@dataclasses.dataclass(frozen=True, kw_only=True)
class TextSimilarity(TextRegression):
    """Pairs of texts with their similarity, for models that embed each text by itself: see `SimilarityForm`.

    `max_length` is that of one text.

    Attributes:
        scale: the label that means equal.
    """

    second: str = "second"

    def form(self, tables: Tables) -> Form:
        return SimilarityForm(length=self.max_length)


def sorted_labels(labels: set[str]) -> tuple[str, ...]:
    """Labels in the order of their class numbers: as numbers if they all are, else as text."""
    return tuple(sorted(labels, key=int)) if all(label.isdecimal() for label in labels) else tuple(sorted(labels))


def _class_number(place: str, label: str, classes: Sequence[str]) -> int:
    number = find_class(label, classes)
    if number is not None:
        return number
    _require_label(place, label)
    if not tell_nothing(classes):
        raise DataError(f"{place}: {unknown_name('label', label, classes)}")
    number = find_class(label, [f"LABEL_{i}" for i in range(len(classes))])
    if number is None:
        raise DataError(
            f"{place}: unknown label {label!r}; the classes have no names, so labels are class numbers from 0 to "
            f"{len(classes) - 1}"
        )
    return number


def _require_label(place: str, label: str) -> None:
    if label.strip().casefold() in MISSING:
        raise DataError(f"{place}: no label, found {label!r}")
