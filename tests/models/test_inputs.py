"""Batches that a model cannot read."""

from __future__ import annotations

import numpy as np
import pytest

from headjax.core.errors import DataError
from tests import tiny


@pytest.mark.parametrize(
    "batch, message",
    [
        ({"tokens": np.zeros((1, 3), np.int32)}, "input_ids: "),
        (
            {"input_ids": np.zeros((1, 3), np.float32)},
            "input_ids: ",
        ),
        ({"input_ids": np.zeros(3, np.int32)}, "input_ids: "),
        (
            {"input_ids": np.zeros((1, 13), np.int32)},
            "input_ids: ",
        ),
        (
            {"input_ids": np.zeros((1, 3), np.int32), "attention_mask": np.ones((1, 4), np.int32)},
            "attention_mask: ",
        ),
    ],
)
def test_batches_that_cannot_be_used_are_refused(batch, message):
    with pytest.raises(DataError) as error:
        tiny.model(tiny.decoder_config())(batch)
    assert str(error.value).startswith(message)
