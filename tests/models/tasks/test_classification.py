"""Losses of classification and regression against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from headjax.core.errors import DataError
from headjax.models.config import Output
from headjax.models.tasks import (
    Classification,
    Regression,
    TokenClassification,
)
from tests.closeness import assert_close

GENERATOR = np.random.default_rng(0)
SUMS = 16 + 15
"""Terms on the way to a loss of given logits: at most 16 classes or positions, at most 15 targets."""


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def normal(*shape):
    return GENERATOR.standard_normal(shape).astype(np.float32)


def test_classification_loss():
    logits, labels = normal(3, 4), np.array([1, 3, -100])
    loss = Classification(classes=4).loss(Output(hidden=None, logits=logits), {"labels": labels})
    expected = -log_softmax(logits)[[0, 1], [1, 3]]
    assert_close(loss.total, [*expected, 0.0], sums=SUMS)
    assert_close(loss.mean(), expected.mean(), sums=SUMS)


def test_token_classification_loss():
    logits, labels = normal(2, 3, 4), np.array([[1, -100, 2], [-100, -100, 0]])
    loss = TokenClassification(classes=4).loss(Output(hidden=None, logits=logits), {"labels": labels})
    logs = -log_softmax(logits)
    assert_close(loss.total, [logs[0, 0, 1] + logs[0, 2, 2], logs[1, 2, 0]], sums=SUMS)
    np.testing.assert_array_equal(loss.weight, [2, 1])


@pytest.mark.parametrize("outputs", [1, 2])
def test_regression_loss(outputs):
    logits, labels = normal(3, outputs), normal(3, outputs)
    labels[2, 0] = np.nan
    given = labels[:, 0] if outputs == 1 else labels
    loss = Regression(outputs=outputs).loss(Output(hidden=None, logits=logits), {"labels": given})
    squares = (logits - labels) ** 2
    assert_close(loss.mean(), np.nanmean(squares), sums=SUMS)
    assert loss.weight[2] == outputs - 1


def test_labels_of_the_wrong_kind_are_errors():
    output = Output(hidden=None, logits=normal(2, 3))
    with pytest.raises(DataError, match=r"labels: "):
        Classification(classes=3).loss(output, {"labels": np.array([0.0, 1.0])})
    with pytest.raises(DataError, match=r"labels: "):
        Regression(outputs=2).loss(output, {"labels": np.array([0.0, 1.0, 2.0])})
