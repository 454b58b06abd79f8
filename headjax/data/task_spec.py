"""Specifications of tasks: all that is known of a task by name, in one place; `headjax.data.tasks` has them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from headjax.data.forms import Form
from headjax.data.rows import Rows, Split
from headjax.data.tables import Rules


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


class FileLayout(NamedTuple):
    """Tables of a task of labelled text, as one of its distributions has them.

    Attributes:
        train, validation: file names or patterns in the task's folder; `train` alone is split.
        text, second, label: columns.
    """

    train: str
    validation: str
    text: str
    second: str
    label: str


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """Description of a task.

    Attributes:
        name: its name.
        form: form of its rows, with the length and the classes that it has unless others are asked for.
        local: function from (specification, paths of local files) to rows.
        sources: data sets of TFDS, read one after another; empty if TFDS has none.
        vocabulary: origin of the tokenizer: `given` by the user, or `bpe`, learned if none is given.
        vocab_size: number of tokens to learn.
        files: formats of local files besides tables and TFRecords of its fields, in words.
        metrics: names of functions of `headjax.data.metrics`, the headline first; empty takes the form's usual ones.
        columns: for a field, further names of its column in tables and TFRecords, besides its names in TFDS.
        folders: folders under the one of HEADJAX_DATA in which its own files are looked for.
        layouts: layouts of its own files, in order of preference.
        labels: labels in its own files in the order of the class numbers; empty for a regression.
        examples: number of training examples in the papers.
        rules: of its own TSV files.
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
    folders: tuple[str, ...] = ()
    layouts: tuple[FileLayout, ...] = ()
    labels: tuple[str, ...] = ()
    examples: int = 0
    rules: Rules = Rules(raw=True)

    def column(self, field: str, there: Container[str]) -> str:
        """Return the name of a field's column among those of a table; the field's own name if none is there."""
        names = (field, *self.columns.get(field, ()), *(source.fields.get(field, field) for source in self.sources))
        return next((name for name in names if name in there), field)

    @property
    def only_evaluated(self) -> bool:
        """Whether the task has no training data."""
        return bool(self.sources) and all("train" not in source.splits for source in self.sources)
