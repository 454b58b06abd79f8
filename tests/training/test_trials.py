"""Conversions to many sizes on a task."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from headjax.models.config import Output
from headjax.training.trials import embeddings, expand


def test_sizes_after_slashes_are_targets_each():
    assert expand("grouped:kv_heads=6/4/2") == ["grouped:kv_heads=6", "grouped:kv_heads=4", "grouped:kv_heads=2"]
    assert expand("collaborative:shared_dim=8") == ["collaborative:shared_dim=8"]


def test_an_embedding_is_the_mean_of_a_texts_hidden_states():
    hidden = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    mask = np.array([[1, 1, 0, 0], [0, 0, 0, 0]])
    found = embeddings(Output(jnp.asarray(hidden)), {"attention_mask": jnp.asarray(mask)})
    np.testing.assert_array_equal(found, [[hidden[0, :2].mean(axis=0)], [np.zeros(3)]])
    every = embeddings(Output(jnp.asarray(hidden)), {})
    np.testing.assert_array_equal(every[:, 0], hidden.mean(axis=1))


def test_texts_kept_apart_have_embeddings_of_their_own():
    hidden = np.arange(12, dtype=np.float32).reshape(1, 4, 3)
    found = embeddings(Output(jnp.asarray(hidden)), {"segment_ids": jnp.asarray([[1, 1, 2, 0]])})
    np.testing.assert_array_equal(found, [[hidden[0, :2].mean(axis=0), hidden[0, 2]]])
