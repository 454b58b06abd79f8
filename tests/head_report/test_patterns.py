"""Attention of a few heads on one example, without its padding."""

from __future__ import annotations

import numpy as np

from headjax.head_report.study import MOST_TOKENS, patterns
from headjax.heads.head_id import HeadId
from headjax.models.embeddings import Embeddings, Learned
from tests import tiny
from tests.hub.directories import T5, model_of


def test_the_first_heads_of_a_stack_are_drawn_without_padding():
    model = tiny.model(tiny.decoder_config())
    batch = tiny.tokens(2, 6) | {"attention_mask": np.arange(6) < np.array([[4], [6]])}
    heads = [HeadId("decoder", 1, 2), HeadId("decoder", 0, 3), HeadId("decoder", 0, 0)]
    (found,) = patterns(model, batch, heads, 2).values()
    assert found.heads == tuple(heads[:2])
    assert found.queries == found.keys == tuple(str(token) for token in batch["input_ids"][0, :4])
    assert found.probabilities.shape == (2, 4, 4)
    np.testing.assert_allclose(found.probabilities.sum(axis=2), 1.0, rtol=1e-5)
    attention = model(batch, attention=True).attention["decoder"]
    np.testing.assert_allclose(found.probabilities[0], attention[1][0, 2, :4, :4], rtol=1e-5, atol=1e-7)


def test_long_examples_are_cut():
    embeddings = Embeddings(vocab_size=tiny.VOCABULARY, positions=Learned(40))
    model = tiny.model(tiny.decoder_config(tiny.layer(), embeddings=embeddings))
    (found,) = patterns(model, tiny.tokens(1, 40), [HeadId("decoder", 0, 0)], 1).values()
    assert found.probabilities.shape == (1, MOST_TOKENS, MOST_TOKENS)
    assert len(found.keys) == MOST_TOKENS


def test_cross_attention_goes_from_target_to_input():
    model = model_of(T5)
    ids = np.array([[5, 6, 7, 8]])
    batch = {"input_ids": ids, "labels": np.array([[9, 10, -100]])}
    heads = [HeadId(stack, 0, 0) for stack in ("encoder", "decoder", "cross")]
    found = patterns(model, batch, heads, 1)
    assert found["encoder"].queries == found["cross"].keys == ("5", "6", "7", "8")
    assert found["decoder"].queries == found["cross"].queries == (str(model.config.start_token), "9")
