"""Losses of tasks about tokens against their definitions."""

from __future__ import annotations

import numpy as np

from headjax.models.config import Output
from headjax.models.tasks import (
    MaskedLanguageModel,
    Pretraining,
    Span,
    Vocabulary,
)
from tests import tiny
from tests.closeness import assert_close
from tests.models.tasks.test_classification import SUMS, log_softmax, normal
from tests.models.test_encoder import PADDED, config


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


def test_masked_logits_are_tied_to_the_token_embeddings():
    """logits = norm(gelu(h W + b)) E^T + c."""
    model = tiny.model(config(task=MaskedLanguageModel(), num_layers=1))
    moved = model.params | {"output": model.params["output"] | {"bias": model.params["output"]["bias"] + 1.0}}
    assert_close(model.replace(params=moved)(PADDED).logits, model(PADDED).logits + 1.0, sums=tiny.SUMS)
    assert "decoder" not in model.params["output"]
    assert MaskedLanguageModel().tensors(8, Vocabulary(tokens=9, size=8))["bias"].shape == (9,)
