"""How many labels a classifier has, as Hugging Face configs say it."""

from __future__ import annotations

from typing import Any

from headjax.hub.fields import Fields
from headjax.models.tasks import Classification, DistilledClassification, Regression, TaskOutput, TokenClassification


def num_labels(fields: Fields) -> int:
    """The number of labels: those of `id2label`, else `num_labels`, else 2."""
    return len(fields.group("id2label")) or fields.size("num_labels", 2)


def classifier(fields: Fields, dropout: float) -> Classification | Regression:
    """The output of a sequence classifier, which may be a regression.

    Raises:
        ConfigError: several labels at once, whose loss there is none for here.
    """
    labels = num_labels(fields)
    usual = "regression" if labels == 1 else "single_label_classification"
    fields.only("problem_type", ["regression", "single_label_classification"], usual)
    if fields.text("problem_type", usual) == "regression":
        return Regression(outputs=labels, dropout=dropout)
    return Classification(classes=labels, dropout=dropout)


def label_fields(output: TaskOutput) -> dict[str, Any]:
    """The fields that say how many labels an output has."""
    if isinstance(output, Regression):
        return {"problem_type": "regression", **_names(output.outputs)}
    if isinstance(output, Classification):
        return {"problem_type": "single_label_classification", **_names(output.classes)}
    return _names(output.classes) if isinstance(output, TokenClassification | DistilledClassification) else {}


def _names(count: int) -> dict[str, Any]:
    labels = [f"LABEL_{i}" for i in range(count)]
    return {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }
