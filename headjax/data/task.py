"""A loaded task: its examples and how they are measured."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from headjax.data.examples import ExampleSource
from headjax.tokenizers.tokenizer import Tokenizer


class MeasureSpec(NamedTuple):
    """Name and arguments of the measure of a task's examples; `headjax.evaluation.task.MEASURES` has the measures."""

    measure: str
    arguments: Mapping[str, Any] = MappingProxyType({})


class TaskData(NamedTuple):
    """A loaded task."""

    tokenizer: Tokenizer | None
    train: ExampleSource
    validation: ExampleSource
    info: Mapping[str, Any]
    measured: MeasureSpec | None = None
    threads: int = 0
