"""Task outputs: losses against their definitions, and what carries none."""

from __future__ import annotations

import numpy as np
import pytest

from headjax.core.errors import DataError
from headjax.models.config import Output
from headjax.models.tasks import (
    Classification,
    MaskedLanguageModel,
    NoTask,
    Pretraining,
    Regression,
    Span,
    TokenClassification,
    Vocabulary,
)
from tests import tiny
from tests.closeness import assert_close
from tests.models.test_encoder import PADDED, config

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


def test_span_loss_is_the_mean_of_both_ends():
    logits = normal(2, 5, 2)
    batch = {"start_positions": np.array([1, 4]), "end_positions": np.array([3, 5])}
    loss = Span().loss(Output(hidden=None, logits=logits), batch)
    logs = -log_softmax(np.swapaxes(logits, 1, 2))
    assert_close(loss.total, [logs[0, 0, 1] + logs[0, 1, 3], logs[1, 0, 4]], sums=SUMS)
    np.testing.assert_array_equal(loss.weight, [2, 1])


def test_the_mean_of_pretraining_is_the_sum_of_two_means():
    labels = np.full((3, 5), -100)
    labels[0, 2], labels[2, 1:3] = 1, 0
    tokens, follows = normal(3, 5, 7), normal(3, 2)
    output = Output(hidden=None, logits=tokens, extra_logits={"seq_relationship_logits": follows})
    batch = {"labels": labels, "next_sentence_label": np.array([0, 1, 1])}
    loss = Pretraining().loss(output, batch)
    masked = MaskedLanguageModel().loss(output, batch)
    next_sentence = -log_softmax(follows)[range(3), [0, 1, 1]].mean()
    assert_close(loss.mean(), masked.mean() + next_sentence, sums=SUMS)
    none = Pretraining().loss(output, batch | {"labels": np.full((3, 5), -100)})
    assert_close(none.mean(), next_sentence, sums=SUMS)


LABELS = {
    "classification": (Classification(classes=3), {"labels": np.array([0, 2])}),
    "regression": (Regression(), {"labels": np.array([0.5, 2.0])}),
    "token_classification": (TokenClassification(classes=3), {"labels": PADDED["input_ids"] % 3}),
    "span": (Span(), {"start_positions": np.array([1, 2]), "end_positions": np.array([2, 6])}),
    "pretraining": (Pretraining(), {"labels": PADDED["input_ids"], "next_sentence_label": np.array([0, 1])}),
}
SHAPES = {
    "classification": (2, 3),
    "regression": (2, 1),
    "token_classification": (2, 10, 3),
    "span": (2, 10, 2),
    "pretraining": (2, 10, tiny.VOCABULARY),
}


@pytest.mark.parametrize("name", list(LABELS))
def test_every_task_goes_through_the_model(name):
    task, labels = LABELS[name]
    model = tiny.model(config(task=task, num_layers=1))
    output = model(PADDED)
    assert output.logits.shape == SHAPES[name]
    assert output.logits.dtype == np.float32
    assert np.isfinite(model.config.loss(output, labels).mean())
    with pytest.raises(DataError, match=r"labels|start_positions"):
        model.config.loss(output, PADDED)
    assert model.config.flops(10) > config(num_layers=1).flops(10)


def test_masked_logits_are_tied_to_the_token_embeddings():
    """logits = norm(gelu(h W + b)) E^T + c."""
    model = tiny.model(config(task=MaskedLanguageModel(), num_layers=1))
    moved = model.params | {"output": model.params["output"] | {"bias": model.params["output"]["bias"] + 1.0}}
    assert_close(model.replace(params=moved)(PADDED).logits, model(PADDED).logits + 1.0, sums=tiny.SUMS)
    assert "decoder" not in model.params["output"]
    assert MaskedLanguageModel().tensors(8, Vocabulary(tokens=9, size=8))["bias"].shape == (9,)


def test_without_a_task_there_is_no_loss():
    model = tiny.model(config(num_layers=1))
    assert model(PADDED).logits is None
    assert isinstance(model.config.output, NoTask)
    with pytest.raises(DataError, match="no task output"):
        model.config.loss(model(PADDED), PADDED)


def test_labels_of_the_wrong_kind_are_errors():
    output = Output(hidden=None, logits=normal(2, 3))
    with pytest.raises(DataError, match=r"labels: expected integers \[batch\]"):
        Classification(classes=3).loss(output, {"labels": np.array([0.0, 1.0])})
    with pytest.raises(DataError, match="labels: expected 2 numbers an example"):
        Regression(outputs=2).loss(output, {"labels": np.array([0.0, 1.0, 2.0])})
