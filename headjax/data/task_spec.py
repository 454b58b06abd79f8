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
    """A data set of TensorFlow Datasets."""

    name: str
    splits: Mapping[Split, str]
    fields: Mapping[str, str]


class FileLayout(NamedTuple):
    """Tables of a task of labelled text, as one of its distributions has them."""

    train: str
    validation: str
    text: str
    second: str
    label: str


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """Description of a task."""

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
