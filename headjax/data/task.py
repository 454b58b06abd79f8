"""A loaded task: its examples and how they are measured; and the base of the configs that load one."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from headjax.core.fields import Checked
from headjax.data.examples import Source
from headjax.tokenizers.tokenizer import Tokenizer


class MeasureSpec(NamedTuple):
    """Name and arguments of the measure of a task's examples; `headjax.evaluation.task.MEASURES` has the measures."""

    measure: str
    arguments: Mapping[str, Any] = MappingProxyType({})


class TaskData(NamedTuple):
    """A loaded task."""

    tokenizer: Tokenizer | None
    train: Source
    validation: Source
    info: Mapping[str, Any]
    measured: MeasureSpec | None = None
    threads: int = 0


class DataConfig(Checked, abc.ABC):
    """Base of the kinds of data, the values of `config.data` in a config file."""

    def for_classes(self, names: Sequence[str]) -> DataConfig:
        """Return the same data with its classes numbered as a model numbers its own, if the data has classes."""
        return self

    def for_files(self, files: Mapping[str, bytes]) -> DataConfig:
        """Return the same data, read as the files that came with a model say (`Model.files`)."""
        return self

    @abc.abstractmethod
    def load(self, tokenizer: Tokenizer | None = None) -> TaskData:
        """Read and encode the data."""
