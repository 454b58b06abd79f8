"""Groups of equal layers: which layers form one, how its parameters are taken apart and put together, and the sites."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core.tensors import Normal, abstract, flatten, initialize
from headjax.models import Compute, Options
from headjax.models.layer import Layer
from headjax.models.shared_stack import SharedStack
from headjax.models.stack import Stack
from tests import tiny
from tests.closeness import assert_close, assert_trees_close, assert_trees_equal

MULTI, COLLABORATIVE = tiny.layer(), tiny.layer(tiny.collaborative())
MIXED = tiny.decoder_config(MULTI, MULTI, COLLABORATIVE, tiny.layer(tiny.no_heads()), MULTI)


def names(*layers: Layer) -> list[str]:
    return [group.name for group in Stack(layers=layers).groups]


def test_equal_neighbours_form_a_group_whatever_heads_they_have_lost():
    assert names(MULTI, MULTI, MULTI) == ["layers_0_2"]
    assert names(MULTI, MULTI, COLLABORATIVE, MULTI) == ["layers_0_1", "layers_2_2", "layers_3_3"]
    pruned = [tiny.replace_attention(MULTI, tiny.multi_head(2, head_ids=ids)) for ids in ((0, 3), (1, 2))]
    assert names(*pruned) == ["layers_0_1"]
    assert [attention.ids for attention in Stack(layers=tuple(pruned)).attentions("attention")] == [(0, 3), (1, 2)]


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
        initialize(tiny.weights(stack, tiny.WIDTH, tiny.WIDTH), jax.random.key(3), Normal()) for stack in (own, shared)
    )
    assert_trees_close(flatten(shared.unstack(only)[0]), flatten(own.unstack(first)[0]), sums=1)


def test_unstack_gives_each_layers_own_slice_and_restack_is_its_inverse():
    stack, params = MIXED.decoder, tiny.model(MIXED).params["decoder"]
    layers = stack.unstack(params)
    assert len(layers) == 5
    np.testing.assert_array_equal(layers[1]["attention"]["query"], params["layers_0_1"]["attention"]["query"][1])
    np.testing.assert_array_equal(layers[2]["attention"]["mixing"], params["layers_2_2"]["attention"]["mixing"][0])
    for layer, weights in zip(stack.layers, layers, strict=True):
        declared = flatten(tiny.weights(layer, MIXED.width, MIXED.width))
        assert {path: array.shape for path, array in flatten(weights).items()} == {
            path: tensor.shape for path, tensor in declared.items()
        }
    assert_trees_equal(stack.restack(layers, params), params)


def test_restack_for_other_groups_computes_the_same():
    """Splitting a group (here by an unused dropout rate that differs) moves parameters and changes no result."""
    config = tiny.decoder_config(MULTI, MULTI, MULTI)
    model, batch = tiny.model(config), tiny.tokens()
    odd = dataclasses.replace(MULTI, dropout=0.1)
    split = dataclasses.replace(config.decoder, layers=(MULTI, odd, MULTI))
    decoder = split.restack(config.decoder.unstack(model.params["decoder"]), model.params["decoder"])
    moved = model.replace(config=config.replace_stacks({"decoder": split}), params=model.params | {"decoder": decoder})
    assert sorted(decoder) == ["final_norm", "layers_0_0", "layers_1_1", "layers_2_2"]
    assert_close(moved(batch).logits, model(batch).logits, sums=tiny.SUMS)


def test_a_deeper_group_is_no_longer_program_and_more_operations():
    """One scan whatever the depth; unrolled, the program grows with it."""

    def equations(depth: int, scan: bool) -> int:
        config = tiny.decoder_config(*[MULTI] * depth)
        options = Options(compute=Compute(scan=scan))
        batch = {"input_ids": jax.ShapeDtypeStruct((2, 8), jnp.int32)}
        jaxpr = jax.make_jaxpr(lambda p, b: config.apply(p, b, options).logits)(abstract(config.tensors()), batch)
        return len(jaxpr.eqns)

    assert equations(3, scan=True) == equations(144, scan=True)
    assert equations(6, scan=False) > 1.5 * equations(3, scan=False)
    stack = MIXED.decoder
    assert stack.flops(16, 8) == sum(Stack(layers=(layer,)).flops(16, 8) for layer in stack.layers)
    assert Stack(layers=(MULTI,)).flops(16, 8) > Stack(layers=(tiny.layer(tiny.no_heads()),)).flops(16, 8) > 0
