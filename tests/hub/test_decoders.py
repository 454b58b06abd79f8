"""Imported decoders at work: windows, lengths, scores, gates and conversions."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from headjax.conversion import convert
from headjax.core.errors import DataError
from headjax.heads.head_id import HeadId
from headjax.heads.pruning import prune
from headjax.heads.scores import score_heads
from tests import tiny
from tests.closeness import assert_close
from tests.hub.directories import CONFIGS, LLAMA, model_of

TOKENS = {"input_ids": np.arange(11)[None]}


@pytest.fixture(scope="module")
def gemma():
    return model_of(CONFIGS["gemma3_text"])


def test_a_window_is_a_mask_and_limits_no_length():
    model, whole = (model_of(CONFIGS["mistral"] | fields) for fields in ({}, {"sliding_window": None}))
    tokens = {"input_ids": np.arange(14)[None] % 20}
    logits, others = (np.asarray(each(tokens).logits) for each in (model, whole))
    assert_close(logits[:, :6], others[:, :6], sums=tiny.SUMS)
    assert np.abs(logits[:, 6:] - others[:, 6:]).max(axis=-1).min() > 1e-3


def test_a_sequence_beyond_the_models_positions():
    model = model_of(LLAMA | {"max_position_embeddings": 6})
    model({"input_ids": np.ones((1, 6), np.int32)})
    with pytest.raises(DataError, match="7 tokens"):
        model({"input_ids": np.ones((1, 7), np.int32)})
    with pytest.raises(DataError, match=r"^position_ids: 6 at \[0, 1\]"):
        model({"input_ids": np.ones((1, 2), np.int32), "position_ids": np.asarray([[0, 6]])})


def test_removed_heads_are_gates_of_zero(gemma):
    smaller = prune(gemma, ["decoder/0/1", "decoder/1/0", "decoder/1/1"])
    gates = jnp.ones((2, 4)).at[jnp.asarray([0, 1, 1]), jnp.asarray([1, 0, 1])].set(0.0)
    assert_close(smaller(TOKENS).logits, gemma(TOKENS, {"decoder": gates}).logits, sums=tiny.SUMS)


def test_heads_are_scored_under_their_window(gemma):
    scores = score_heads(gemma, [{"input_ids": np.arange(80).reshape(2, 40) % 20}], statistics=("distance",))
    places = [HeadId("decoder", layer, head) for layer in (0, 1) for head in range(4)]
    assert sorted(scores.score("importance")) == places
    assert min(scores.score("importance").values()) > 0.0
    distances = [scores.score("distance")[place] for place in places]
    assert max(distances[:4]) < 3.0 < max(distances[4:])  # a window of 4, and 40 tokens


def test_a_latent_of_full_rank_is_the_same_model(gemma):
    """Keys are rebuilt, normalised with 1 + weight and turned by the layer's own base, under the layer's window."""
    converted = convert(gemma, "latent:rank=8").model
    assert [layer.window for layer in converted.config.decoder.layers] == [4, None]
    assert_close(converted(TOKENS).logits, gemma(TOKENS).logits, sums=20 * tiny.SUMS)
