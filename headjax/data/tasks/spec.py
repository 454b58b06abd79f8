"""What a task is before it is prepared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Literal

from headjax.data.forms import Form
from headjax.data.rows import Rows, Split


@dataclasses.dataclass(frozen=True)
class TfdsSource:
    """A data set of TensorFlow Datasets.

    Attributes:
        name: with config and version: `glue/sst2:2.0.0`.
        splits: for each of ours that of the data set, or a slice of it.
        fields: for each field of a row the data set's feature; `answers/text` is one inside another, and
            `answers/answer_start/0` its first entry.
    """

    name: str
    splits: Mapping[Split, str]
    fields: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """A task.

    Attributes:
        name: its name.
        form: how its rows become examples, unless asked otherwise.
        local: reads local files: from (this, paths) to rows.
        sources: data sets of TFDS, one after another; none where TFDS has no such data set.
        vocabulary: where the tokenizer comes from if none is given: `given` must be, `bpe` is learned.
        vocab_size: tokens that are learned.
        files: what local files it reads besides tables and TFRecords of its fields, in words.
        metrics: its own metrics, the headline first, names of those of `headjax.evaluation.measures`; empty takes what
            is usual for the form.
        columns: for a field, what else its column may be called in tables and TFRecords, besides its names in TFDS.
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
        """The name of a field's column among those of a table; the field's own where there is none."""
        names = (field, *self.columns.get(field, ()), *(source.fields.get(field, field) for source in self.sources))
        return next((name for name in names if name in there), field)
