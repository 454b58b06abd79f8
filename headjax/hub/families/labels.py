"""How many labels a classifier has, as Hugging Face configs say it."""

from __future__ import annotations

from typing import Any

from headjax.hub.fields import Fields
from headjax.models.tasks import Classification, Regression, TaskOutput, TokenClassification


def num_labels(fields: Fields) -> int:
    """The number of labels: those of `id2label`, else `num_labels`, else 2."""
    return len(fields.group("id2label")) or fields.size("num_labels", 2)


def label_fields(output: TaskOutput) -> dict[str, Any]:
    """The fields that say how many labels an output has."""
    if isinstance(output, Regression):
        return {"problem_type": "regression", **_names(output.outputs)}
    if isinstance(output, Classification):
        return {"problem_type": "single_label_classification", **_names(output.classes)}
    return _names(output.classes) if isinstance(output, TokenClassification) else {}


def _names(count: int) -> dict[str, Any]:
    labels = [f"LABEL_{i}" for i in range(count)]
    return {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }
