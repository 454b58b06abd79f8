"""Batches that a model cannot read."""

from __future__ import annotations

import numpy as np
import pytest

from headjax.core.errors import DataError
from tests import tiny


@pytest.mark.parametrize(
    "batch, message",
    [
        ({"tokens": np.zeros((1, 3), np.int32)}, "input_ids: missing from the batch, which has tokens"),
        (
            {"input_ids": np.zeros((1, 3), np.float32)},
            "input_ids: expected integers [batch, length], got float32 [1, 3]",
        ),
        ({"input_ids": np.zeros(3, np.int32)}, "input_ids: expected integers [batch, length], got int32 [3]"),
        (
            {"input_ids": np.zeros((1, 13), np.int32)},
            "input_ids: 13 tokens, but the model has 12 learned positions",
        ),
        (
            {"input_ids": np.zeros((1, 3), np.int32), "attention_mask": np.ones((1, 4), np.int32)},
            "attention_mask: has shape [1, 4], the tokens have [1, 3]",
        ),
    ],
)
def test_batches_that_cannot_be_used_are_refused(batch, message):
    with pytest.raises(DataError) as error:
        tiny.model(tiny.decoder_config())(batch)
    assert str(error.value) == message
