"""Classes of a classifier, as Hugging Face configs number and name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headjax.core.class_names import tell_nothing
from headjax.hub.fields import Fields
from headjax.hub.table import Choice, Custom, Entry, Record, record, text
from headjax.models.tasks import Classification, Regression


def num_labels(fields: Fields) -> int:
    """Return the number of labels: those of `id2label`, else `num_labels`, else 2."""
    return len(fields.group("id2label")) or fields.size("num_labels", 2)


def label_names(fields: Fields) -> tuple[str, ...]:
    """Return the names of `id2label` in the order of their numbers; none where they only repeat them (`LABEL_0`).

    Raises:
        ConfigError: the keys of `id2label` are not the numbers from 0.
    """
    named = {str(number): str(name) for number, name in fields.group("id2label").items()}
    if set(named) != {str(number) for number in range(len(named))}:
        raise fields.error("id2label", f"expected the keys 0 to {len(named) - 1}, got {', '.join(sorted(named)[:8])}")
    names = tuple(named[str(number)] for number in range(len(named)))
    return () if tell_nothing(names) else names


def _write(labels: Sequence[str]) -> dict[str, Any]:
    return {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }


_COUNT = Custom(num_labels, lambda count: _write([f"LABEL_{i}" for i in range(count)]), name="id2label")
_NAMES = Custom(label_names, lambda names: _write(names) if names else {}, name="id2label")
_PROBLEM = text(
    "problem_type", lambda fields: "regression" if num_labels(fields) == 1 else "single_label_classification"
)


def labelled(kind: type, **parts: Entry | float) -> Record:
    """Return the entry of an output with classes, whose names come before the names that unnamed classes get."""
    return record(kind, names=_NAMES, classes=_COUNT, **parts)


def classifier(dropout: Entry | float) -> Choice:
    """Return the entry of a sequence classifier, which is a regression where there is one label.

    Several labels at once (`multi_label_classification`) are not supported: headjax has no loss for them.
    """
    return Choice(
        _PROBLEM,
        {
            "regression": record(Regression, outputs=_COUNT, dropout=dropout),
            "single_label_classification": labelled(Classification, dropout=dropout),
        },
    )
