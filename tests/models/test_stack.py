"""Runs, and taking stacked parameters apart and putting them together again."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from headjax.attention import NoHeads
from headjax.core.errors import ConfigError
from headjax.core.tensors import Normal, flatten, initialize
from headjax.models.layer import Layer
from headjax.models.stack import SharedStack, Stack
from tests import tiny
from tests.closeness import assert_close, assert_trees_close

MULTI, COLLABORATIVE = tiny.layer(), tiny.layer(tiny.collaborative())
MIXED = tiny.decoder_config(MULTI, MULTI, COLLABORATIVE, tiny.layer(NoHeads()), MULTI)


def names(*layers: Layer) -> list[str]:
    return [group.name for group in Stack(layers=layers).groups]


def test_equal_neighbours_form_one_run():
    assert names(MULTI, MULTI, MULTI) == ["layers_0_2"]
    assert names(MULTI, MULTI, COLLABORATIVE, MULTI) == ["layers_0_1", "layers_2_2", "layers_3_3"]


def test_runs_are_found_once(monkeypatch):
    calls = []
    structure = Layer.structure
    monkeypatch.setattr(Layer, "structure", lambda layer: calls.append(layer) or structure(layer))
    stack = Stack(layers=(MULTI, COLLABORATIVE) * 192)
    assert [stack.tied_layers(layer) for layer in range(384)] == [(layer,) for layer in range(384)]
    assert len(stack.groups) == 384
    assert len(calls) == 384
    shared = SharedStack(layers=(MULTI,) * 384)
    assert all(shared.tied_layers(layer) == tuple(range(384)) for layer in range(384))
    assert len(calls) == 385


def test_runs_do_not_make_stacks_differ():
    first, second = Stack(layers=(MULTI,) * 3), Stack(layers=(MULTI,) * 3)
    assert first.groups
    assert (first, hash(first)) == (second, hash(second))
    assert dataclasses.replace(first, layers=(MULTI, COLLABORATIVE)).groups != first.groups


def test_original_head_numbers_do_not_split_a_run():
    first = tiny.replace_attention(MULTI, tiny.multi_head(2, head_ids=(0, 3)))
    second = tiny.replace_attention(MULTI, tiny.multi_head(2, head_ids=(1, 2)))
    assert names(first, second) == ["layers_0_1"]
    assert [attention.ids for attention in Stack(layers=(first, second)).attentions("attention")] == [(0, 3), (1, 2)]


def test_layers_start_alike_whatever_the_layers_beside_them_are():
    uniform, deeper = (tiny.decoder_config(*(MULTI,) * depth) for depth in (5, 6))
    drawn = [config.initialize(jax.random.key(3)) for config in (uniform, MIXED, deeper)]
    configs = zip((uniform, MIXED, deeper), drawn, strict=True)
    alone, mixed, more = (config.decoder.unstack(params["decoder"]) for config, params in configs)
    for layer in (0, 1, 4):
        assert_trees_close(flatten(mixed[layer]), flatten(alone[layer]), sums=1)
        assert_trees_close(flatten(more[layer]), flatten(alone[layer]), sums=1)
    np.testing.assert_array_equal(drawn[1]["embeddings"]["token"], drawn[0]["embeddings"]["token"])
    assert not np.allclose(alone[0]["attention"]["query"], alone[1]["attention"]["query"])


def test_a_shared_layer_starts_as_the_first_of_layers_with_weights_of_their_own():
    own, shared = (kind(layers=(MULTI,) * 3) for kind in (Stack, SharedStack))
    first, only = (
        initialize(stack.tensors(tiny.WIDTH, tiny.WIDTH), jax.random.key(3), Normal()) for stack in (own, shared)
    )
    assert_trees_close(flatten(shared.unstack(only)[0]), flatten(own.unstack(first)[0]), sums=1)


def test_unstack_gives_each_layers_own_slice():
    stack, params = MIXED.decoder, tiny.model(MIXED).params["decoder"]
    layers = stack.unstack(params)
    assert len(layers) == 5
    np.testing.assert_array_equal(layers[1]["attention"]["query"], params["layers_0_1"]["attention"]["query"][1])
    np.testing.assert_array_equal(layers[2]["attention"]["mixing"], params["layers_2_2"]["attention"]["mixing"][0])
    for layer, weights in zip(stack.layers, layers, strict=True):
        declared = flatten(layer.tensors(MIXED.width, MIXED.width))
        assert {path: array.shape for path, array in flatten(weights).items()} == {
            path: tensor.shape for path, tensor in declared.items()
        }


def test_restack_is_the_inverse_of_unstack():
    stack, params = MIXED.decoder, tiny.model(MIXED).params["decoder"]
    again = stack.restack(stack.unstack(params), params)
    before, after = flatten(params), flatten(again)
    assert before.keys() == after.keys()
    for path, array in before.items():
        np.testing.assert_array_equal(array, after[path], err_msg=path)


def test_restack_for_other_runs_computes_the_same():
    """Splitting a group (here by an unused dropout rate that differs) moves parameters and changes no result."""
    config = tiny.decoder_config(MULTI, MULTI, MULTI)
    model, batch = tiny.model(config), tiny.tokens()
    odd = dataclasses.replace(MULTI, dropout=0.1)
    split = dataclasses.replace(config.decoder, layers=(MULTI, odd, MULTI))
    decoder = split.restack(config.decoder.unstack(model.params["decoder"]), model.params["decoder"])
    moved = model.replace(config=config.replace_stacks({"decoder": split}), params=model.params | {"decoder": decoder})
    assert sorted(decoder) == ["final_norm", "layers_0_0", "layers_1_1", "layers_2_2"]
    assert_close(moved(batch).logits, model(batch).logits, sums=tiny.SUMS)


@pytest.mark.parametrize(
    "layers, message",
    [
        ((), "layers: "),
        (
            (MULTI, dataclasses.replace(MULTI, cross_attention=tiny.multi_head())),
            "layers: ",
        ),
    ],
)
def test_impossible_stacks_are_refused(layers, message):
    with pytest.raises(ConfigError) as error:
        Stack(layers=layers)
    assert str(error.value).startswith(message)


def test_flops_are_the_sum_over_layers():
    stack = MIXED.decoder
    total = sum(Stack(layers=(layer,)).flops(16, 8) for layer in stack.layers)
    assert stack.flops(16, 8) == total
    assert Stack(layers=(MULTI,)).flops(16, 8) > Stack(layers=(tiny.layer(NoHeads()),)).flops(16, 8) > 0
