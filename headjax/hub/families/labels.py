"""Classes of a classifier, as Hugging Face configs number and name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headjax.core.class_names import tell_nothing
from headjax.hub.fields import Fields
from headjax.models.tasks import Classification, DistilledClassification, Regression, TaskOutput, TokenClassification


def num_labels(fields: Fields) -> int:
    """The number of labels: those of `id2label`, else `num_labels`, else 2."""
    return len(fields.group("id2label")) or fields.size("num_labels", 2)


def label_names(fields: Fields) -> tuple[str, ...]:
    """The names of `id2label` in the order of their numbers; empty where they only repeat the numbers (`LABEL_0`).

    Raises:
        ConfigError: the keys of `id2label` are not the numbers from 0.
    """
    named = {str(number): str(name) for number, name in fields.group("id2label").items()}
    if set(named) != {str(number) for number in range(len(named))}:
        raise fields.error("id2label", f"expected the keys 0 to {len(named) - 1}, got {', '.join(sorted(named)[:8])}")
    names = tuple(named[str(number)] for number in range(len(named)))
    return () if tell_nothing(names) else names


def classifier(fields: Fields, dropout: float) -> Classification | Regression:
    """The output of a sequence classifier, which may be a regression.

    Raises:
        ConfigError: several labels at once, which no loss here covers.
    """
    labels = num_labels(fields)
    usual = "regression" if labels == 1 else "single_label_classification"
    fields.only("problem_type", ["regression", "single_label_classification"], usual)
    if fields.text("problem_type", usual) == "regression":
        return Regression(outputs=labels, dropout=dropout)
    return Classification(classes=labels, dropout=dropout, names=label_names(fields))


def label_fields(output: TaskOutput) -> dict[str, Any]:
    """The fields that number and name the labels of an output."""
    if isinstance(output, Regression):
        return {"problem_type": "regression", **_names(output.outputs, ())}
    if isinstance(output, Classification):
        return {"problem_type": "single_label_classification", **_names(output.classes, output.names)}
    if isinstance(output, TokenClassification | DistilledClassification):
        return _names(output.classes, output.names)
    return {}


def _names(count: int, names: Sequence[str]) -> dict[str, Any]:
    labels = names or [f"LABEL_{i}" for i in range(count)]
    return {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }
