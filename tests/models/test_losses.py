"""Losses of every task against their definitions, and every task's output in a model."""

import jax
import numpy as np
import pytest

import headjax
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


def loss_of(task, logits, labels, **extra):
    output = headjax.models.Output(hidden=None, logits=logits, extra_logits=extra or None)
    return jax.jit(task.loss)(output, labels if isinstance(labels, dict) else {"labels": labels})


def test_classification():
    logits = normal(3, 4)
    loss = loss_of(headjax.tasks.Classification(classes=4), logits, np.array([1, 3, -100]))
    expected = -log_softmax(logits)[[0, 1], [1, 3]]
    assert_close(loss.total, [*expected, 0.0], sums=SUMS)
    assert_close(loss.mean(), expected.mean(), sums=SUMS)


def test_smoothed_classification():
    """(1 - s) (-log p_y) + s mean_k(-log p_k), and without s for evaluation."""
    logits, labels = normal(2, 5), np.array([1, 3])
    task, log = headjax.tasks.Classification(classes=5, label_smoothing=0.2), log_softmax(logits)
    nll = -log[[0, 1], labels]
    assert_close(loss_of(task, logits, labels).total, 0.8 * nll - 0.2 * log.mean(axis=1), sums=SUMS)
    assert_close(loss_of(task.for_evaluation(), logits, labels).total, nll, sums=SUMS)


def test_distillation_is_half_label_half_teacher():
    task, labels = headjax.tasks.DistilledClassification(classes=5), np.array([1, 3])
    ends = {"cls_logits": normal(2, 5), "distillation_logits": normal(2, 5)}
    taught = loss_of(task, normal(2, 5), {"labels": labels, "teacher_labels": np.array([0, 3])}, **ends)
    first, second = (-log_softmax(logits) for logits in ends.values())
    assert_close(taught.total, (first[[0, 1], [1, 3]] + second[[0, 1], [0, 3]]) / 2, sums=SUMS)
    assert loss_of(task, normal(2, 5), labels, **ends).total[0] != taught.total[0]


@pytest.mark.parametrize(
    "task",
    [headjax.tasks.DistilledClassification(classes=5), headjax.tasks.Classification(classes=5, label_smoothing=0.2)],
    ids=["two", "smooth"],
)
def test_shares_of_classes_are_weighted_labels(task):
    logits, ends = normal(2, 5), {"cls_logits": normal(2, 5), "distillation_logits": normal(2, 5)}
    shares = np.zeros((2, 5), np.float32)
    shares[[0, 1], [1, 3]] = 0.7
    shares[[0, 1], [4, 0]] = 0.3
    first, second = (loss_of(task, logits, np.array(labels), **ends).total for labels in ([1, 3], [4, 0]))
    mixed = loss_of(task, logits, shares, **ends)
    assert_close(mixed.total, 0.7 * first + 0.3 * second, sums=5)
    np.testing.assert_array_equal(mixed.weight, [1.0, 1.0])
    padded = loss_of(task, logits, np.where([[True], [False]], shares, np.float32(np.nan)), **ends)
    assert_close(padded.total, [mixed.total[0], 0.0], sums=5)
    np.testing.assert_array_equal(padded.weight, [1.0, 0.0])


def test_token_classification():
    logits, labels = normal(2, 3, 4), np.array([[1, -100, 2], [-100, -100, 0]])
    loss = loss_of(headjax.tasks.TokenClassification(classes=4), logits, labels)
    logs = -log_softmax(logits)
    assert_close(loss.total, [logs[0, 0, 1] + logs[0, 2, 2], logs[1, 2, 0]], sums=SUMS)
    np.testing.assert_array_equal(loss.weight, [2, 1])


@pytest.mark.parametrize("outputs", [1, 2])
def test_regression(outputs):
    logits, labels = normal(3, outputs), normal(3, outputs)
    labels[2, 0] = np.nan
    loss = loss_of(headjax.tasks.Regression(outputs=outputs), logits, labels[:, 0] if outputs == 1 else labels)
    assert_close(loss.mean(), np.nanmean((logits - labels) ** 2), sums=SUMS)
    assert loss.weight[2] == outputs - 1


def test_a_span_is_the_mean_of_both_ends():
    logits = normal(2, 5, 2)
    loss = loss_of(
        headjax.tasks.Span(), logits, {"start_positions": np.array([1, 4]), "end_positions": np.array([3, 5])}
    )
    logs = -log_softmax(np.swapaxes(logits, 1, 2))
    assert_close(loss.total, [logs[0, 0, 1] + logs[0, 1, 3], logs[1, 0, 4]], sums=SUMS)
    np.testing.assert_array_equal(loss.weight, [2, 1])


def test_the_mean_of_pretraining_is_the_sum_of_two_means():
    labels = np.full((3, 5), -100)
    labels[0, 2], labels[2, 1:3] = 1, 0
    tokens, follows = normal(3, 5, 7), normal(3, 2)
    batch = {"labels": labels, "next_sentence_label": np.array([0, 1, 1])}
    masked = loss_of(headjax.tasks.MaskedLanguageModel(), tokens, batch).mean()
    next_sentence = -log_softmax(follows)[range(3), [0, 1, 1]].mean()
    for given, expected in (
        (batch, masked + next_sentence),
        (batch | {"labels": np.full((3, 5), -100)}, next_sentence),
    ):
        loss = loss_of(headjax.tasks.Pretraining(), tokens, given, seq_relationship_logits=follows)
        assert_close(loss.mean(), expected, sums=SUMS)


def test_masked_logits_are_tied_to_the_token_embeddings():
    """logits = norm(gelu(h W + b)) E^T + c."""
    model = tiny.model(config(task=headjax.tasks.MaskedLanguageModel(), num_layers=1))
    moved = model.params | {"output": model.params["output"] | {"bias": model.params["output"]["bias"] + 1.0}}
    assert_close(model.replace(params=moved)(PADDED).logits, model(PADDED).logits + 1.0, sums=tiny.SUMS)
    assert "decoder" not in model.params["output"]
    assert headjax.tasks.MaskedLanguageModel().module(8, headjax.tasks.Vocabulary(tokens=9, size=8)).bias.shape == (9,)


def test_labels_of_the_wrong_kind_are_errors():
    for task, labels in (
        (headjax.tasks.Classification(classes=3), [0.0, 1.0]),
        (headjax.tasks.Regression(outputs=2), [0.0, 1.0, 2.0]),
    ):
        with pytest.raises(headjax.DataError, match=r"labels: "):
            loss_of(task, normal(2, 3), np.array(labels))


SILENT = np.full((2, 10), -100)
IN_MODELS = {
    "classification": (
        headjax.tasks.Classification(classes=3),
        (2, 3),
        {"labels": np.array([0, 2])},
        {"labels": np.array([-100, -100])},
    ),
    "regression": (
        headjax.tasks.Regression(),
        (2, 1),
        {"labels": np.array([0.5, 2.0])},
        {"labels": np.array([np.nan, np.nan])},
    ),
    "span": (
        headjax.tasks.Span(),
        (2, 10, 2),
        {"start_positions": np.array([1, 2]), "end_positions": np.array([2, 6])},
        {"start_positions": np.array([-1, 10]), "end_positions": np.array([10, -1])},
    ),
    "pretraining": (
        headjax.tasks.Pretraining(),
        (2, 10, tiny.VOCABULARY),
        {"labels": PADDED["input_ids"], "next_sentence_label": np.array([0, 1])},
        {"labels": SILENT, "next_sentence_label": np.array([-100, -100])},
    ),
}
"""By name: a task, the shape of its logits, labels, and labels that say nothing."""


@pytest.mark.parametrize("name", IN_MODELS)
def test_every_task_goes_through_the_model(name):
    task, shape, labels, nothing = IN_MODELS[name]
    model = tiny.model(config(task=task, num_layers=1))
    output = model(PADDED)
    assert (output.logits.shape, output.logits.dtype) == (shape, np.float32)
    assert np.isfinite(model.losses(output, labels).mean())

    def silent(logits):
        return model.losses(output._replace(logits=logits), nothing).mean()

    loss, slopes = jax.jit(jax.value_and_grad(silent))(output.logits)
    assert float(loss) == 0.0
    assert not np.asarray(slopes).any()
    with pytest.raises(headjax.DataError, match=r"labels|start_positions"):
        model.losses(output, PADDED)
    assert model.config.flops(10) > config(num_layers=1).flops(10)


def test_without_a_task_there_is_no_loss():
    model = tiny.model(config(num_layers=1))
    assert isinstance(model.config.task, headjax.tasks.NoTask)
    assert model(PADDED).logits is None
    with pytest.raises(headjax.DataError, match="no task output"):
        model.losses(model(PADDED), PADDED)
