from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headjax.heads import gates
from headjax.heads.head_id import HeadId
from headjax.heads.prefix import chunks_of, record, resume
from headjax.models.config import Options
from tests import tiny
from tests.closeness import assert_close

BATCH = tiny.tokens(2, 6) | {"attention_mask": np.array([[1] * 6, [1] * 4 + [0] * 2])}


@pytest.fixture(scope="module")
def model():
    multi, collaborative = tiny.layer(tiny.multi_head(2)), tiny.layer(tiny.collaborative(2))
    return tiny.model(tiny.decoder_config(multi, multi, multi, collaborative))


@functools.partial(jax.jit, static_argnums=0)
def recorded(config, params, batch):
    output, streams = record(config, params, batch, Options())
    return output.logits, streams


@functools.partial(jax.jit, static_argnums=0)
def resumed(config, params, batch, at, streams, start):
    return resume(config, params, batch, Options(gates=at), streams, "decoder", start).logits


def test_resuming_from_any_layer_equals_the_whole_forward_with_one_compilation(model):
    _, streams = recorded(model.config, model.params, BATCH)
    compiled = resumed._cache_size()
    for layer in range(4):
        at = gates.without(model.config, [HeadId("decoder", layer, 1)])
        for start in range(layer + 1):
            got = resumed(model.config, model.params, BATCH, at, streams, jnp.int32(start))
            assert_close(got, model(BATCH, at).logits, sums=tiny.SUMS)
    assert resumed._cache_size() == compiled + 1


def test_layers_before_the_start_are_not_computed(model):
    """Their parameters and the embeddings could be anything."""
    _, streams = recorded(model.config, model.params, BATCH)
    at = gates.without(model.config, [HeadId("decoder", 2, 1)])
    broken = jax.tree.map(lambda array: array, model.params)
    broken["decoder"]["layers_0_2"] = jax.tree.map(
        lambda array: array.at[:2].set(jnp.nan), broken["decoder"]["layers_0_2"]
    )
    broken["embeddings"]["position"] = broken["embeddings"]["position"] * jnp.nan
    got = resumed(model.config, broken, BATCH, at, streams, jnp.int32(2))
    assert_close(got, model(BATCH, at).logits, sums=tiny.SUMS)


def test_chunks_are_equal_cover_every_head_and_waste_little():
    heads = [HeadId("encoder", i, h) for i, count in enumerate((12, 12, 12)) for h in range(count)]
    for limit, size in ((100, 12), (12, 12), (11, 6), (5, 4), (1, 1)):
        chunks = chunks_of(heads, limit)
        assert {chunk.size for chunk in chunks} == {size}
        assert [head for chunk in chunks for head in chunk.heads] == heads
        assert all({head.layer for head in chunk.padded} == {chunk.layer} for chunk in chunks)
    ragged = [HeadId("encoder", 0, h) for h in range(4)] + [HeadId("encoder", 2, 7)]
    assert [chunk.padded for chunk in chunks_of(ragged, 2)][-1] == (HeadId("encoder", 2, 7),) * 2
