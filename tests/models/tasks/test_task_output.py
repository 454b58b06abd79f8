"""Every task output in a model, and a model without one."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from headjax.core.errors import DataError
from headjax.models.tasks import (
    Classification,
    NoTask,
    Pretraining,
    Regression,
    Span,
    TokenClassification,
)
from tests import tiny
from tests.models.test_encoder import PADDED, config

LABELS = {
    "classification": (Classification(classes=3), {"labels": np.array([0, 2])}),
    "regression": (Regression(), {"labels": np.array([0.5, 2.0])}),
    "token_classification": (TokenClassification(classes=3), {"labels": PADDED["input_ids"] % 3}),
    "span": (Span(), {"start_positions": np.array([1, 2]), "end_positions": np.array([2, 6])}),
    "pretraining": (Pretraining(), {"labels": PADDED["input_ids"], "next_sentence_label": np.array([0, 1])}),
}


NOTHING = {
    "classification": {"labels": np.array([-100, -100])},
    "regression": {"labels": np.array([np.nan, np.nan])},
    "token_classification": {"labels": np.full((2, 10), -100)},
    "span": {"start_positions": np.array([-1, 10]), "end_positions": np.array([10, -1])},
    "pretraining": {"labels": np.full((2, 10), -100), "next_sentence_label": np.array([-100, -100])},
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
    silent, slopes = jax.value_and_grad(lambda logits: _loss(model.config, output, logits, NOTHING[name]))(
        output.logits
    )
    assert float(silent) == 0.0
    assert not np.asarray(slopes).any()
    with pytest.raises(DataError, match=r"labels|start_positions"):
        model.config.loss(output, PADDED)
    assert model.config.flops(10) > config(num_layers=1).flops(10)


def _loss(config, output, logits, labels):
    return config.loss(output._replace(logits=logits), labels).mean()


def test_without_a_task_there_is_no_loss():
    model = tiny.model(config(num_layers=1))
    assert model(PADDED).logits is None
    assert isinstance(model.config.output, NoTask)
    with pytest.raises(DataError, match="no task output"):
        model.config.loss(model(PADDED), PADDED)
