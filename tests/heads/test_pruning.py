"""Heads that are removed, and other changes of the layers of a model."""

import functools
import itertools

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

import headjax
from headjax.core import tensors
from headjax.heads.pruning import percent_steps
from headjax.heads.surgery import config_after
from tests import tiny
from tests.closeness import assert_close

BATCH = tiny.tokens() | {"attention_mask": np.array([[1] * 10, [1] * 7 + [0] * 3])}
PRESENT = BATCH["attention_mask"].astype(bool)


@pytest.fixture(scope="module")
def model():
    return tiny.model(tiny.decoder_config(tiny.layer(tiny.multi_head(3)), tiny.layer(tiny.collaborative(3))))


def logits(model, removed=()):
    return np.asarray(headjax.gated(model, dict.fromkeys(removed, 0.0))(BATCH).logits)[PRESENT]


@hypothesis.given(st.sets(st.sampled_from([headjax.HeadId("decoder", i, h) for i in range(2) for h in range(3)])))
@hypothesis.settings(max_examples=8)
def test_removing_heads_is_masking_them(model, removed):
    pruned = headjax.prune(model, removed)
    tensors.check(pruned.config.tensors(), pruned.params)
    assert_close(logits(pruned), logits(model, removed), sums=tiny.SUMS)
    assert set(headjax.all_heads(pruned.config)) == set(headjax.all_heads(model.config)) - removed


def test_layers_left_empty_compute_their_output_bias(model):
    pruned = headjax.prune(model, headjax.all_heads(model.config))
    assert all(attention.of is headjax.nn.NoHeadsAttention for attention in pruned.config.attentions()["decoder"])
    assert_close(logits(pruned), logits(model, headjax.all_heads(model.config)), sums=tiny.SUMS)
    outputs = np.asarray(pruned(BATCH, probe=combined).probes["decoder"][0])
    assert_close(outputs, np.broadcast_to(outputs[:1, :1], outputs.shape), sums=tiny.SUMS)


def combined(probe):
    return probe.module.output(jax.lax.collapse(probe.attended.context, 2))


def test_order_does_not_matter_and_numbers_stay_original(model):
    first, second, third = "decoder/0/0", "decoder/0/2", "decoder/1/1"
    results = [
        headjax.prune(headjax.prune(headjax.prune(model, [a]), [b]), [c])
        for a, b, c in itertools.permutations([first, second, third])
    ]
    for pruned in results:
        assert pruned.config == results[0].config
        jax.tree.map(np.testing.assert_array_equal, pruned.params, results[0].params)
    assert results[0].config.attentions()["decoder"][0].ids == (1,)
    assert [entry["removed"] for entry in results[0].history] == [[first], [second], [third]]
    with pytest.raises(headjax.HeadjaxError, match=r"layer 0 of decoder has heads 1$"):
        headjax.prune(results[0], [first])


def test_pruning_nothing_is_the_same_model(model):
    assert headjax.prune(model, []) is model


SIZES = {"num_heads": 4, "value_dim": 4, "head_dim": 4, "projection_bias": True, "content_bias": True}
SIZES["mixing_init"] = headjax.nn.Concatenate()


@pytest.fixture(scope="module")
def shared():
    """Every head has four shared dimensions of its own; head 1 also reads one of head 0's."""
    fresh = tiny.model(
        tiny.decoder_config(
            tiny.layer(headjax.Kind(headjax.CollaborativeAttention, shared_dim=16, **SIZES)), tiny.layer()
        )
    )

    def own(found):
        blocks = np.repeat(np.eye(4), 4, axis=1) * np.arange(1.0, 17.0)[None, :]
        blocks[1, 2] = 0.5
        return found.holding({"mixing": np.asarray(blocks, np.float32)})

    return headjax.map_attention(fresh, own, layers=[0])


def test_dimensions_that_only_removed_heads_read_go_with_them(shared):
    batch, removed = tiny.tokens(), [headjax.HeadId("decoder", 0, 0), headjax.HeadId("decoder", 0, 3)]
    pruned = headjax.prune(shared, removed)
    tensors.check(pruned.config.tensors(), pruned.params)
    first = pruned.config.attentions()["decoder"][0]
    assert first.shared_dim == 9
    expected = headjax.gated(shared, dict.fromkeys(removed, 0.0))(batch).logits
    assert_close(pruned(batch).logits, expected, sums=tiny.SUMS)


def test_steps_are_those_of_the_original():
    steps = [7, 14, 21, 28, 36, 43, 50, 57, 64, 72, 79, 86, 93, 100, 108, 115, 122, 129, 136, 144]
    assert percent_steps(144) == steps


@pytest.fixture(scope="module")
def mixed():
    layers = (tiny.layer(), tiny.layer(), tiny.layer(tiny.collaborative()))
    return tiny.model(tiny.decoder_config(*layers)).replace(history=({"action": "train"},), tokenizer="tokens")


def test_the_identity_changes_nothing(mixed):
    same = headjax.map_attention(mixed, lambda found: found.module)
    assert same.config == mixed.config
    assert same.history == mixed.history
    assert same.tokenizer == "tokens"
    jax.tree.map(np.testing.assert_array_equal, same.params, mixed.params)


def test_only_the_chosen_layers_are_visited_and_runs_are_formed_anew(mixed):
    visited = []

    def rescale(found):
        visited.append((found.stack, found.layer))
        params = found.params | {"query": found.params["query"] / 4.0}
        return found.module.like(found.config.replace(scale=2.0), params)

    changed = headjax.map_attention(mixed, rescale, stacks=["decoder"], layers=[1])
    assert visited == [("decoder", 1)]
    groups = [group.name for group in changed.config.stacks()["decoder"].groups]
    assert groups == ["layers_0_0", "layers_1_1", "layers_2_2"]
    batch = tiny.tokens()
    # head_dim 4: scale 1/2 became 2, and queries without bias a quarter as large.
    zero = jax.numpy.zeros((4, 4))
    without_bias = headjax.map_attention(
        mixed, lambda found: found.holding(found.params | {"query_bias": zero}), layers=[1]
    )
    expected = without_bias(batch).logits
    got = headjax.map_attention(without_bias, rescale, layers=[1])(batch).logits
    assert_close(got, expected, sums=tiny.SUMS)


def test_what_does_not_change_is_shared(mixed):
    """A layer that a change leaves alone, and the other sub-layers of changed ones, keep the very same arrays."""
    pruned = headjax.prune(mixed, ["decoder/0/1", "decoder/1/1"])
    assert "layers_0_1" in pruned.params["decoder"]
    old, new = mixed.params["decoder"], pruned.params["decoder"]
    assert new["layers_0_1"]["feed_forward"]["up"] is old["layers_0_1"]["feed_forward"]["up"]
    assert new["layers_2_2"]["attention"]["query"] is old["layers_2_2"]["attention"]["query"]
    assert pruned.params["embeddings"]["token"] is mixed.params["embeddings"]["token"]


def test_a_surgery_of_shapes_gives_the_architecture(mixed):
    fewer = functools.partial(headjax.map_attention, change=lambda found: found.module.keep_heads([1, 2]))
    layers = config_after(mixed.config, fewer)
    assert [layer.attention.ids for layer in layers.stacks()["decoder"].layers] == [(1, 2)] * 3
