"""Logits and pooled vectors from hidden states."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from headjax.models.outputs import Pooler, Tied, Untied
from tests import tiny
from tests.closeness import assert_close
from tests.models.test_encoder import PADDED, config


def test_tied_logits_are_products_with_the_embeddings():
    config = tiny.decoder_config(output=Tied(bias=True))
    model = tiny.model(config)
    output = model(tiny.tokens())
    table, bias = model.params["embeddings"]["token"], model.params["output"]["bias"]
    assert_close(output.logits, output.hidden @ table.T + bias[None, None], sums=tiny.WIDTH)


@pytest.mark.parametrize("output", [Tied(), Untied()], ids=lambda output: type(output).__name__)
def test_capped_logits_are_a_tanh_of_the_others(output):
    model = tiny.model(tiny.decoder_config(output=output))
    capped = model.replace(config=dataclasses.replace(model.config, output=dataclasses.replace(output, softcap=0.7)))
    logits = np.asarray(model(tiny.tokens()).logits)
    assert_close(capped(tiny.tokens()).logits, 0.7 * np.tanh(logits / 0.7), sums=tiny.SUMS)


def test_the_pooled_vector_is_of_the_first_token():
    model = tiny.model(config(pooler=Pooler(activation="relu")))
    output = model(PADDED)
    pooler = model.params["pooler"]
    expected = np.maximum(output.hidden[:, 0] @ pooler["kernel"] + pooler["bias"][None], 0.0)
    assert_close(output.pooled, expected, sums=tiny.WIDTH)
