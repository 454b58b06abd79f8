"""The class names that a model's config holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from headjax.core.class_names import class_numbers, tell_nothing
from headjax.models.base import ModelConfig
from headjax.models.tasks.base import TaskOutput
from headjax.models.tasks.classification import Classification, TokenClassification
from headjax.models.tasks.distilled import DistilledClassification

Classifier = Classification | DistilledClassification | TokenClassification


def class_names(config: ModelConfig) -> tuple[str, ...]:
    """The names of a classifier's classes in the order of their numbers; empty where it has none."""
    output = getattr(config, "output", None)
    return output.names if isinstance(output, Classifier) else ()


def names_or_numbers(config: ModelConfig) -> tuple[str, ...]:
    """The names of a classifier's classes, their numbers where it has no names; empty for models of other kinds."""
    output = getattr(config, "output", None)
    return (output.names or class_numbers(output.classes)) if isinstance(output, Classifier) else ()


def with_class_names(config: Any, names: Sequence[str]) -> Any:
    """The config of a classifier that names no classes yet with these names; any other config as it is.

    Names that only repeat the numbers, or that are not as many as the classes, are not taken.
    """
    output: TaskOutput | None = getattr(config, "output", None)
    if not isinstance(output, Classifier) or output.names or len(names) != output.classes or tell_nothing(names):
        return config
    return dataclasses.replace(config, output=dataclasses.replace(output, names=tuple(names)))


def remembered_names(history: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The class names by a model's history, for directories that were written before configs held them."""
    for entry in reversed(history):
        if entry.get("action") == "task":
            return ()
        if entry.get("action") == "train" and (entry.get("data") or {}).get("labels"):
            return tuple(map(str, entry["data"]["labels"]))
        if entry.get("action") == "import":
            named = (entry.get("config") or {}).get("id2label") or {}
            return tuple(str(named.get(str(number), "")) for number in range(len(named)))
    return ()
