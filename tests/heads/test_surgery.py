import functools

import jax
import numpy as np
import pytest

from headjax.heads.pruning import prune
from headjax.heads.surgery import config_after, map_attention
from tests import tiny
from tests.closeness import assert_close


@pytest.fixture(scope="module")
def model():
    layers = (tiny.layer(), tiny.layer(), tiny.layer(tiny.collaborative()))
    return tiny.model(tiny.decoder_config(*layers)).replace(history=({"action": "train"},), tokenizer="tokens")


def test_the_identity_changes_nothing(model):
    same = map_attention(model, lambda found: found.module)
    assert same.config == model.config
    assert same.history == model.history
    assert same.tokenizer == "tokens"
    jax.tree.map(np.testing.assert_array_equal, same.params, model.params)


def test_only_the_chosen_layers_are_visited_and_runs_are_formed_anew(model):
    visited = []

    def rescale(found):
        visited.append((found.stack, found.layer))
        params = found.params | {"query": found.params["query"] / 4.0}
        return found.module.like(found.config.replace(scale=2.0), params)

    changed = map_attention(model, rescale, stacks=["decoder"], layers=[1])
    assert visited == [("decoder", 1)]
    groups = [group.name for group in changed.config.stacks()["decoder"].groups]
    assert groups == ["layers_0_0", "layers_1_1", "layers_2_2"]
    batch = tiny.tokens()
    # head_dim 4: scale 1/2 became 2, and queries without bias a quarter as large.
    zero = jax.numpy.zeros((4, 4))
    without_bias = map_attention(model, lambda found: found.holding(found.params | {"query_bias": zero}), layers=[1])
    expected = without_bias(batch).logits
    got = map_attention(without_bias, rescale, layers=[1])(batch).logits
    assert_close(got, expected, sums=tiny.SUMS)


def test_what_does_not_change_is_shared(model):
    """A layer that a change leaves alone, and the other sub-layers of changed ones, keep the very same arrays."""
    pruned = prune(model, ["decoder/0/1", "decoder/1/1"])
    assert "layers_0_1" in pruned.params["decoder"]
    old, new = model.params["decoder"], pruned.params["decoder"]
    assert new["layers_0_1"]["feed_forward"]["up"] is old["layers_0_1"]["feed_forward"]["up"]
    assert new["layers_2_2"]["attention"]["query"] is old["layers_2_2"]["attention"]["query"]
    assert pruned.params["embeddings"]["token"] is model.params["embeddings"]["token"]


def test_a_surgery_of_shapes_gives_the_architecture(model):
    fewer = functools.partial(map_attention, change=lambda found: found.module.keep_heads([1, 2]))
    layers = config_after(model.config, fewer)
    assert [layer.attention.ids for layer in layers.stacks()["decoder"].layers] == [(1, 2)] * 3
