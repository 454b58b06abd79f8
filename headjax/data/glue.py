"""GLUE (Wang et al. 2019) from its own files."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from headjax.core.class_names import find_class, reorder, tell_nothing
from headjax.core.errors import DataError, require
from headjax.core.fields import Size
from headjax.core.serialize import kind, unknown_name
from headjax.data.labelled_text import LabelledText, TextClassification, TextSimilarity
from headjax.data.local_files import labelled_table, layout_fields
from headjax.data.task import DataConfig, TaskData
from headjax.data.task_spec import TaskSpec
from headjax.data.tasks import GLUE
from headjax.tokenizers.tokenizer import Tokenizer


@kind("glue")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Glue(DataConfig):
    """A task of GLUE from local files.

    Attributes:
        name: a name of `GLUE`.
        path: the task's folder; empty looks for it under the folder that the environment variable HEADJAX_DATA names.
        similarity: for `stsb`, whether each sentence is read by itself and labels are divided by 5.
        max_length: number of tokens of an example.
        vocabulary, buckets: see `LabelledText`.
        classes: the task's class names in a model's order; empty for GLUE's.
    """

    name: str
    path: str = ""
    similarity: bool = False
    max_length: Size = 128
    vocabulary: str = ""
    buckets: tuple[Size, ...] = ()
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.name in GLUE, "name", unknown_name("GLUE task", self.name, GLUE))
        require(not self.similarity or self.name == "stsb", "similarity", "only stsb has similarities as labels")
        own = self.spec.form.label_names
        ordered = not self.classes or reorder(self.classes, own) is not None
        require(ordered, "classes", f"the classes of {self.name} are {', '.join(own)}, got {', '.join(self.classes)}")

    @property
    def spec(self) -> TaskSpec:
        """The task."""
        return GLUE[self.name]

    def for_classes(self, names: Sequence[str]) -> Glue:
        own = self.spec.form.label_names
        if tell_nothing(names) or not own:
            return self
        if reorder(names, own) is None:
            raise DataError(f"{self.name}: its classes are {', '.join(own)}; the model's are {', '.join(names)}")
        return dataclasses.replace(self, classes=tuple(names))

    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        table = self.table()
        data = table.load_table(table.read(quotes=False), tokenizer, () if self.similarity else self.spec.metrics)
        if not self.classes or data.measured is None:
            return data
        # GLUE's F1 is that of its class 1, whatever number the model has for it.
        positive = find_class(self.spec.form.label_names[1], self.classes)
        arguments = {**data.measured.arguments, "positive": positive}
        return data._replace(measured=data.measured._replace(arguments=arguments))

    def table(self) -> LabelledText:
        """Return the task's files as a table.

        Raises:
            DataError: the files are not found.
        """
        own = {"max_length": self.max_length, "vocabulary": self.vocabulary, "buckets": self.buckets}
        fields: dict[str, Any] = layout_fields(self.spec, self.path) | own
        if self.similarity:
            return TextSimilarity(**fields, scale=5.0)
        table = labelled_table(self.spec, fields)
        return table.for_classes(self.classes) if self.classes and isinstance(table, TextClassification) else table
