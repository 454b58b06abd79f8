"""Logits and pooled vectors from hidden states."""

from __future__ import annotations

import numpy as np

from headjax.models.outputs import Pooler, Tied
from tests import tiny
from tests.closeness import assert_close
from tests.models.test_encoder import PADDED, config


def test_tied_logits_are_products_with_the_embeddings():
    config = tiny.decoder_config(output=Tied(bias=True))
    model = tiny.model(config)
    output = model(tiny.tokens())
    table, bias = model.params["embeddings"]["token"], model.params["output"]["bias"]
    assert_close(output.logits, output.hidden @ table.T + bias[None, None], sums=tiny.WIDTH)


def test_the_pooled_vector_is_of_the_first_token():
    model = tiny.model(config(pooler=Pooler(activation="relu")))
    output = model(PADDED)
    pooler = model.params["pooler"]
    expected = np.maximum(output.hidden[:, 0] @ pooler["kernel"] + pooler["bias"][None], 0.0)
    assert_close(output.pooled, expected, sums=tiny.WIDTH)
