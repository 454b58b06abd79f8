"""The record of a task: all that is known of it, in one place; `headjax.data.registry` has the records."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from headjax.data.files import packed_or_plain
from headjax.data.forms import Form, TranslationForm
from headjax.data.rows import Row, Split

HELD_OUT, OWN_HELD_OUT = 0.05, 0.1
"""Approximate share of the rows held out if no file is for validation: of known tasks and texts, of one's own rows."""


@dataclasses.dataclass(frozen=True)
class TfdsSource:
    """A data set of TensorFlow Datasets."""

    name: str
    splits: Mapping[Split, str]
    fields: Mapping[str, str]


class FileLayout(NamedTuple):
    """Files of a task as one of its distributions has them, and the columns by number of tables without a header."""

    train: str
    validation: str
    columns: tuple[str, ...] = ()


class Recipe(NamedTuple):
    """A paper's settings of training on a task; 0 for what the paper does not say.

    Attributes:
        paper: its first author and year.
        batch_size: examples of a step; of packed text as many as hold the paper's tokens.
        learning_rates: the highest of the schedule; of several the paper takes the best on the development set.
        length: greatest number of tokens of an example.
        warmup_steps: steps until the learning rate is highest.
        epochs, steps: how long, one or the other.
    """

    paper: str
    batch_size: int
    learning_rates: tuple[float, ...]
    length: int = 0
    warmup_steps: int = 0
    epochs: int = 0
    steps: int = 0


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """A task.

    Attributes:
        name, form: its name, and how its rows are encoded.
        own: whether it is a form of the user's own files, in which second texts are found.
        learns_classes: whether its classes are those of the user's files.
        suffixes, read: its files that are no tables, and their reader.
        arguments: reader of what follows the name, `NAME:PATH,context=1024`: returns the task by it, and the path.
        documents: whether pieces of the text are held out, rather than rows.
        files, folders, layouts: its files in words, where they lie under HEADJAX_DATA, and by their names.
        columns: names of a table's columns by field, besides the field's own.
        sources: its data sets in TFDS.
        vocabulary: whether a tokenizer must be given, or is learned.
        vocab_size: number of tokens of a learned one.
        metrics: its metrics, the primary metric first; empty for the usual ones of the form.
        held_out: share of the rows that is held out if no file is for validation.
        examples: number of its training examples, by which the papers count epochs.
        recipes: the papers' settings; of a paper that trains in stages, one after the other.
    """

    name: str
    form: Form
    own: bool = False
    learns_classes: bool = False
    suffixes: tuple[str, ...] = ()
    read: Callable[[Path], Iterable[Row]] | None = None
    arguments: Callable[[TaskSpec, str], tuple[TaskSpec, str]] | None = None
    documents: bool = False
    files: str = ""
    folders: tuple[str, ...] = ()
    layouts: tuple[FileLayout, ...] = ()
    columns: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    sources: tuple[TfdsSource, ...] = ()
    vocabulary: Literal["given", "bpe", "none"] = "given"
    vocab_size: int = 0
    metrics: tuple[str, ...] = ()
    held_out: float = HELD_OUT
    examples: int = 0
    recipes: tuple[Recipe, ...] = ()

    def recipe(self, paper: str, stage: int = 1) -> Recipe:
        """Return a paper's settings."""
        return [one for one in self.recipes if one.paper == paper][stage - 1]

    def column(self, field: str, there: Container[str]) -> str:
        """Return the name of a field's column among those of a table; a number, or the usual name, if none is there."""
        known = self.columns.get(field, ())
        names = (*(() if field in known else (field,)), *known, *(one.fields.get(field, field) for one in self.sources))
        usual = known[0] if len(known) == 1 else field
        return next((name for name in names if name in there or name.isdecimal()), usual)

    def located(self, path: Path) -> Path:
        """Return a path, or the file with the task's suffix that it stands for: `train.en` of `train`."""
        if isinstance(self.form, TranslationForm) and self.suffixes and not path.exists():
            return packed_or_plain(path.with_name(f"{path.name}{self.suffixes[0]}")) or path
        return path
