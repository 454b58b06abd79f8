"""Attention on marked keys: marks by hand, and weights that equal a direct sum."""

import jax
import numpy as np
import pytest

from headjax.heads.head_id import HeadId, all_heads
from headjax.heads.marked_keys import UNIFORM, attention_on_marks, matching_bracket, previous_token, same_context
from headjax.heads.pruning import prune
from headjax.models.compute import Compute
from headjax.models.model import Model
from tests.tiny import decoder_config


@pytest.fixture(scope="module")
def model():
    config = decoder_config()
    return Model(config, config.initialize(jax.random.key(0)))


def test_weights_are_the_mean_over_marked_queries(model):
    tokens = np.random.default_rng(0).integers(0, 5, (4, 9))  # so few tokens that they recur
    batches = [{"input_ids": tokens[:2]}, {"input_ids": tokens[2:]}]
    found = attention_on_marks(model, batches, {"previous": previous_token, "same": same_context})
    given = model({"input_ids": tokens}, attention=True, compute=Compute(attention="einsum")).attention["decoder"]
    for name, marker in (("previous", previous_token), ("same", same_context)):
        marks = np.stack([marker(row) for row in tokens])
        queries = marks.any(-1).sum()
        for layer, weights in enumerate(given):
            expected = (np.asarray(weights) * marks[:, None]).sum((0, 2, 3)) / queries
            actual = [found[name][HeadId("decoder", layer, head)] for head in range(len(expected))]
            np.testing.assert_allclose(actual, expected, rtol=1e-5)
        visible = np.arange(1, 10)[:, None]
        np.testing.assert_allclose(found[name][UNIFORM], (marks / visible).sum() / queries, rtol=1e-6)


def test_a_layer_may_have_lost_all_its_heads(model):
    pruned = prune(model, [HeadId("decoder", 0, head) for head in range(4)])
    found = attention_on_marks(pruned, [{"input_ids": np.arange(8).reshape(2, 4)}], {"previous": previous_token})
    assert list(found["previous"]) == [*all_heads(pruned.config), UNIFORM]


def test_all_visible_keys_marked_have_all_the_weight(model):
    batches = [{"input_ids": np.arange(8).reshape(2, 4)}]
    found = attention_on_marks(model, batches, {"all": lambda tokens: np.tri(len(tokens), dtype=bool)})
    np.testing.assert_allclose(list(found["all"].values()), 1.0, rtol=1e-5)


def test_copies_follow_earlier_occurrences():
    marks = same_context([7, 1, 7, 2, 7])
    queries, keys = np.nonzero(marks)
    # The second 7 (place 2) may copy what followed the first one; the third 7 both that and what followed the second.
    assert list(zip(queries.tolist(), keys.tolist(), strict=True)) == [(2, 1), (4, 1), (4, 3)]
    assert not same_context([3, 3]).any()  # what followed is the query itself


def test_brackets_match_inside_and_across_tokens():
    texts = ["f(", "x[", "1", "])", "()", "}"]
    marks = matching_bracket(lambda token: texts[token])([0, 1, 2, 3, 4, 5])
    assert [tuple(place) for place in np.argwhere(marks).tolist()] == [(3, 0), (3, 1)]
