"""Groups of equal layers: which layers form one, how its parameters are taken apart and put together, and the sites."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import headjax
from headjax.core.modules import declared
from headjax.core.tensors import abstract
from headjax.nn.block import Block
from headjax.nn.stack import StackConfig
from tests import tiny
from tests.closeness import assert_trees_close, assert_trees_equal
from tests.models.test_encoder import config as encoder_config
from tests.tiny import flatten

MULTI, COLLABORATIVE = tiny.layer(), tiny.layer(tiny.collaborative())
MIXED = tiny.decoder_config(MULTI, MULTI, COLLABORATIVE, tiny.layer(headjax.Kind(headjax.nn.NoHeadsAttention)), MULTI)


def stack_of(*layers: dict[str, Any]) -> StackConfig:
    return tiny.decoder_config(*layers).stacks()["decoder"]


def names(*layers: dict[str, Any]) -> list[str]:
    return [group.name for group in stack_of(*layers).groups]


def test_equal_neighbours_form_a_group_whatever_heads_they_have_lost():
    assert names(MULTI, MULTI, MULTI) == ["layers_0_2"]
    assert names(MULTI, MULTI, COLLABORATIVE, MULTI) == ["layers_0_1", "layers_2_2", "layers_3_3"]
    pruned = [tiny.layer(tiny.multi_head(2, head_ids=ids)) for ids in ((0, 3), (1, 2))]
    assert names(*pruned) == ["layers_0_1"]
    assert [attention.ids for attention in stack_of(*pruned).attentions("attention")] == [(0, 3), (1, 2)]


def test_layers_start_alike_whatever_the_layers_beside_them_are():
    uniform, deeper = (tiny.decoder_config(*(MULTI,) * depth) for depth in (5, 6))
    drawn = [config.initialize(jax.random.key(3)) for config in (uniform, MIXED, deeper)]
    configs = zip((uniform, MIXED, deeper), drawn, strict=True)
    alone, mixed, more = (config.stacks()["decoder"].unstack(params["decoder"]) for config, params in configs)
    for layer in (0, 1, 4):
        assert_trees_close(flatten(mixed[layer]), flatten(alone[layer]), sums=1)
        assert_trees_close(flatten(more[layer]), flatten(alone[layer]), sums=1)
    np.testing.assert_array_equal(drawn[1]["embeddings"]["token"], drawn[0]["embeddings"]["token"])
    assert not np.allclose(alone[0]["attention"]["query"], alone[1]["attention"]["query"])


def test_a_shared_layer_starts_as_the_first_of_layers_with_weights_of_their_own():
    first, only = (
        each.stacks()["encoder"].unstack(each.initialize(jax.random.key(3))["encoder"])[0]
        for each in (encoder_config(), encoder_config(shared_layers=True))
    )
    assert_trees_close(flatten(only), flatten(first), sums=1)


def test_unstack_gives_each_layers_own_slice_and_restack_is_its_inverse():
    stack, params = MIXED.stacks()["decoder"], tiny.model(MIXED).params["decoder"]
    layers = stack.unstack(params)
    assert len(layers) == 5
    np.testing.assert_array_equal(layers[1]["attention"]["query"], params["layers_0_1"]["attention"]["query"][1])
    np.testing.assert_array_equal(layers[2]["attention"]["mixing"], params["layers_2_2"]["attention"]["mixing"][0])
    for layer, weights in zip(stack.layers, layers, strict=True):
        shapes = {path: tensor.shape for path, tensor in flatten(declared(Block(layer))).items()}
        assert {path: array.shape for path, array in flatten(weights).items()} == shapes
    assert_trees_equal(stack.restack(layers, params), params)


def test_a_deeper_group_is_no_longer_program_and_more_operations():
    """One scan whatever the depth; unrolled, the program grows with it."""

    def equations(depth: int, scan: bool) -> int:
        config = tiny.decoder_config(*[MULTI] * depth)
        call = headjax.models.ForwardOptions(compute=headjax.Compute(scan=scan))
        batch = {"input_ids": jax.ShapeDtypeStruct((2, 8), jnp.int32)}
        jaxpr = jax.make_jaxpr(lambda p, b: headjax.Model(config, p).forward(b, call).logits)(
            abstract(config.tensors()), batch
        )
        return len(jaxpr.eqns)

    assert equations(3, scan=True) == equations(144, scan=True)
    assert equations(6, scan=False) > 1.5 * equations(3, scan=False)
