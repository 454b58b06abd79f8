"""Sentences and pairs of sentences with labels, from the user's own tables."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from headjax.core.class_names import (
    ClassIndex,
    class_numbers,
    is_missing,
    label_name,
    reorder,
    sorted_names,
    tell_nothing,
)
from headjax.core.errors import DataError, require
from headjax.core.fields import Fraction, Positive, Size, unknown_name
from headjax.core.serialize import kind
from headjax.data.files import find_files
from headjax.data.forms import Form, LabelledForm, SimilarityForm
from headjax.data.forms.labelled import NO_CLASS, finite
from headjax.data.loading import Reading, load_rows
from headjax.data.rows import Row, Split, divided
from headjax.data.tables import Rules, table_rows
from headjax.data.task import DataConfig, TaskData
from headjax.data.text_data import vocabulary_tokenizer
from headjax.tokenizers.tokenizer import Tokenizer

Table = Mapping[Split, Sequence[Row]]
"""The rows of both splits, with the fields `text`, `second` (of pairs) and `label`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledText(DataConfig):
    """Base of the tables of labelled text; `headjax.data.text_rows.table_rows` describes formats and columns.

    Attributes:
        path: file with the examples to train on, or a glob pattern; empty for none.
        validation: file with examples to evaluate on, or a glob pattern; empty holds some of `path` out. Rows with the
            same first text are then held out together.
        validation_fraction: share of `path` that is held out if there is no `validation`, approximately.
        text: column of the text.
        second: column of the second text of a pair; empty for single texts.
        label: column of the label.
        max_length: number of tokens of an example, special tokens included; longer examples are cut.
        vocabulary: a BERT's `vocab.txt`, to train a model that brings no tokenizer.
        buckets: lengths to which training batches are padded, besides the longest example's; one compilation each.
    """

    path: str = ""
    validation: str = ""
    validation_fraction: Fraction = 0.1
    text: str = "sentence"
    second: str = ""
    label: str = "label"
    max_length: Size = 128
    vocabulary: str = ""
    buckets: tuple[Size, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.path or self.validation), "path", "name a file to train on, one to evaluate on, or both")

    def read(self, rules: Rules = Rules()) -> Table:
        """Return the rows of both splits, labels as the text in the files."""
        named = {"text": self.text, "second": self.second, "label": self.label}
        columns = {field: column for field, column in named.items() if column}
        train, validation = (
            [row for file in (find_files(path) if path else ()) for row in table_rows(file, columns, rules)]
            for path in (self.path, self.validation)
        )
        if self.validation:
            return {"train": train, "validation": validation}
        return divided(train, "text", self.validation_fraction, self.path)

    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        return self.load_table(self.read(), tokenizer)

    def load_table(self, table: Table, tokenizer: Tokenizer | None, metrics: Sequence[str] = ()) -> TaskData:
        """Return rows that were read as a task's data."""
        tokenizer = tokenizer or vocabulary_tokenizer(self.vocabulary)
        rows = self.numbered(table)
        reading = Reading(metrics, self.buckets)
        data = load_rows(self.form(table), rows, tokenizer, {"text": self.path or self.validation}, reading)
        noted: dict[str, Any] = {split: {**data.info[split], **self.notes(found)} for split, found in rows.items()}
        return data._replace(info={**data.info, **noted})

    def numbered(self, table: Table) -> dict[Split, list[Row]]:
        """Return the rows with their labels as class numbers or numbers, where there is none `NO_CLASS` or NaN."""
        number = self.numbering(table)
        return {
            split: [row._replace(values={**row.values, "label": number(row)}) for row in rows]
            for split, rows in table.items()
        }

    @abc.abstractmethod
    def form(self, table: Table) -> Form:
        """Return the form that encodes the rows."""

    @abc.abstractmethod
    def numbering(self, table: Table) -> Callable[[Row], float]:
        """Return the function from a row to its label as a number."""

    def notes(self, rows: Sequence[Row]) -> Mapping[str, Any]:
        """Return facts about a split for `TaskData.info`, beside the counts of its form."""
        return {}


@kind("text_classification")
@dataclasses.dataclass(frozen=True, kw_only=True)
class TextClassification(LabelledText):
    """Text, or pairs of texts, with a class each.

    Attributes:
        classes: labels as they stand in the files, in the order of the class numbers; empty takes the labels of the
            training file (of the validation file if there is no other), sorted (as numbers if they all are).
        names: names of the classes, in the same order; empty takes the labels themselves.
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

    def form(self, table: Table) -> Form:
        classes = tuple(self.names or self.labels(table))
        return LabelledForm(length=self.max_length, pairs=bool(self.second), classes=classes)

    def numbering(self, table: Table) -> Callable[[Row], float]:
        classes = self.labels(table)
        has_names = not tell_nothing(classes)
        index = ClassIndex(classes)
        invented = ClassIndex([] if has_names else [f"LABEL_{number}" for number in range(len(classes))])

        def number(row: Row) -> float:
            label = label_name(row.values["label"])
            found = index.find(row.values["label"].strip())
            found = index.find(label) if found is None else found
            found = invented.find(label) if found is None else found
            if found is None:
                if is_missing(label):
                    return NO_CLASS
                wrong = unknown_name("label", label, classes) if has_names else _no_class(label, len(classes))
                raise DataError(f"{row.place}: {wrong}")
            return found

        return number

    def labels(self, table: Table) -> tuple[str, ...]:
        """Return the labels as they stand in the files, in the order of the class numbers."""
        if self.classes:
            return self.classes
        found = {label_name(row.values["label"]) for row in table["train"] or table["validation"]}
        found = found if found == {"+", "-"} else {label for label in found if not is_missing(label)}
        if not found:
            raise DataError(f"{self.path or self.validation}: no row has a label in the column {self.label}")
        return sorted_names(found)

    def notes(self, rows: Sequence[Row]) -> Mapping[str, Any]:
        labels = np.asarray([row.values["label"] for row in rows], int)
        return {"classes": np.bincount(labels[labels != NO_CLASS]).tolist()}


@kind("text_regression")
@dataclasses.dataclass(frozen=True, kw_only=True)
class TextRegression(LabelledText):
    """Text, or pairs of texts, with a number each.

    Attributes:
        scale: divisor of the labels.
    """

    scale: Positive = 1.0

    def form(self, table: Table) -> Form:
        return LabelledForm(length=self.max_length, pairs=bool(self.second))

    def numbering(self, table: Table) -> Callable[[Row], float]:
        def number(row: Row) -> float:
            label = row.values["label"]
            return math.nan if self.is_missing(label) else finite(row.place, label) / self.scale

        return number

    def is_missing(self, label: str) -> bool:
        """Return whether a label means that there is none."""
        return is_missing(label, numbers=True)


@kind("text_similarity")
@dataclasses.dataclass(frozen=True, kw_only=True)
class TextSimilarity(TextRegression):
    """Pairs of texts with their similarity, for models that embed each text by itself: see `SimilarityForm`.

    `max_length` is the number of tokens of one text.

    Attributes:
        scale: label of equal texts.
    """

    second: str = "second"

    def is_missing(self, label: str) -> bool:
        return is_missing(label, numbers=self.scale == 1.0)  # no score from 0 to a scale of 5 is -1

    def form(self, table: Table) -> Form:
        return SimilarityForm(length=self.max_length)


def _no_class(label: str, count: int) -> str:
    return f"unknown label {label!r}; the classes have no names, so labels are class numbers from 0 to {count - 1}"
