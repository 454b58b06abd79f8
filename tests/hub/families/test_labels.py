"""Labels in config.json: their number, their names, and what they are for."""

from __future__ import annotations

import pytest

from headjax.core.errors import ConfigError
from headjax.hub.families.labels import classifier, labelled
from headjax.hub.fields import Fields
from headjax.models.tasks import Classification, Regression, TokenClassification

NAMED = {"id2label": {"0": "no", "1": "maybe", "2": "yes"}}


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, Classification(classes=2, dropout=0.5)),
        ({"num_labels": 3}, Classification(classes=3, dropout=0.5)),
        ({"num_labels": 1}, Regression(outputs=1, dropout=0.5)),
        ({"num_labels": 1, "problem_type": "single_label_classification"}, Classification(classes=1, dropout=0.5)),
        ({"num_labels": 3, "problem_type": "regression"}, Regression(outputs=3, dropout=0.5)),
        (NAMED, Classification(classes=3, dropout=0.5, names=("no", "maybe", "yes"))),
        ({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, Classification(classes=2, dropout=0.5)),
    ],
)
def test_classifiers_there_and_back(fields, found):
    entry = classifier(0.5)
    assert entry.read(Fields(fields)) == found
    assert entry.read(Fields(entry.write(found, "output"))) == found


def test_names_are_written_as_they_are():
    entry = labelled(TokenClassification, dropout=0.0)
    written = entry.write(TokenClassification(classes=3, dropout=0.0, names=("no", "maybe", "yes")), "output")
    assert written == NAMED | {"label2id": {"no": 0, "maybe": 1, "yes": 2}}
    assert entry.write(TokenClassification(classes=2, dropout=0.0), "output")["id2label"] == {
        "0": "LABEL_0",
        "1": "LABEL_1",
    }


def test_several_labels_at_once_are_not_supported():
    with pytest.raises(ConfigError, match="problem_type: 'multi_label_classification' is not supported"):
        classifier(0.5).read(Fields({"problem_type": "multi_label_classification"}))


def test_labels_are_numbered_from_0():
    with pytest.raises(ConfigError, match="id2label: expected the keys 0 to 1, got 1, 2"):
        classifier(0.5).read(Fields({"id2label": {"1": "no", "2": "yes"}}))
