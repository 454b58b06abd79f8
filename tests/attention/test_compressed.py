"""Compressed attention: the formulation inside over a latent, and a cache that holds the latent and positions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headjax.attention import Call, Compressed, Grouped, Mask, MultiHead, NoHeads
from headjax.attention.rotary import RotaryHalves
from headjax.core.tensors import flatten
from tests.attention.formulations import (
    FORMULATIONS,
    SUMS,
    WIDTH,
    attended_by,
    kept_heads,
    random_inputs,
    random_params,
)
from tests.closeness import assert_close


def test_it_is_the_formulation_inside_with_products_of_weights():
    compressed = FORMULATIONS["compressed"]
    params, x = random_params(compressed), jnp.asarray(random_inputs())
    call = Call(mask=Mask(causal=True), positions=jnp.asarray([[0, 1, 2, 3, 4, 5], [2, 3, 4, 5, 6, 7]]))
    actual = attended_by(compressed, params, x, call, positions=call.positions).context
    inner = compressed.inner
    joined = {name: jnp.einsum("mr,rhd->mhd", params["latent"], params["inner"][name]) for name in ("key", "value")}
    plain = params["inner"] | joined
    expected = attended_by(inner, plain, x, call, positions=call.positions).context
    assert_close(actual, expected, sums=4 * SUMS)


INNER = {
    "grouped": Grouped(num_heads=6, kv_heads=2, head_dim=4, value_dim=3, projection_bias=True),
    "unequal groups": FORMULATIONS["ragged_grouped"],
    "own keys": MultiHead(num_heads=4, head_dim=4, value_dim=6, rotary=RotaryHalves(base=100.0)),
    "a map across heads": FORMULATIONS["talking"],
    "shared keys": FORMULATIONS["collaborative"],
}


@pytest.mark.parametrize("name", INNER)
def test_one_query_attends_to_the_latent_as_to_rebuilt_values(name):
    """Where the latent is small, one query reads it; padding, gates, biases and unequal groups included."""
    compressed = Compressed(inner=INNER[name], rank=3)
    params, x = random_params(compressed), jnp.asarray(random_inputs())
    gates = jnp.linspace(0.5, 1.5, compressed.num_heads)
    call = Call(
        mask=Mask(keys=jnp.arange(6)[None] < jnp.asarray([[6], [4]])), positions=jnp.full((2, 1), 5), gates=gates
    )
    module = compressed.bind(params, WIDTH, WIDTH)
    stored = module.key_values(x, None)
    actual = module.attend(x[:, 5:], stored, call).context
    rebuilt = module.inner.key_values(stored["latent"], stored["position"])
    expected = module.inner.attend(x[:, 5:], rebuilt, call).context
    assert_close(actual, expected, sums=4 * SUMS)


def test_decoding_rebuilds_no_values():
    compressed = Compressed(inner=INNER["grouped"], rank=5)
    module = compressed.bind(random_params(compressed), WIDTH, WIDTH)

    def products(queries):
        x = jnp.zeros((1, queries, WIDTH))
        stored = {"latent": jnp.zeros((1, 100, 5)), "position": jnp.zeros((1, 100), jnp.int32)}
        program = jax.jit(lambda x: module.attend(x, stored, Call()).context).lower(x).compile()
        return program.cost_analysis()["flops"]

    values = 2 * 100 * 5 * 2 * 3
    assert compressed.saved(1, 100) == values + 2 * 100 * 6 * 3 - 2 * 6 * 5 * 3 - 2 * 100 * 6 * 5
    assert (compressed.rebuilt_size(1, 100), compressed.rebuilt_size(100, 100)) == (2 * 4, 2 * (4 + 3))
    assert products(1) < compressed.inner.flops(WIDTH, 5, 1, 100)
    assert compressed.saved(100, 100) < 0


def test_the_cache_holds_the_latent_and_whole_positions_in_any_type():
    """bfloat16 counts to 256 alone."""
    compressed = FORMULATIONS["compressed"]
    params = jax.tree.map(lambda array: array.astype(jnp.bfloat16), random_params(compressed))
    inputs = jnp.asarray(random_inputs(), jnp.bfloat16)
    kept = compressed.bind(params, WIDTH, WIDTH).key_values(inputs, jnp.arange(1000, 1006)[None])
    assert {name: array.shape for name, array in kept.items()} == {"latent": (2, 6, 7), "position": (2, 6)}
    np.testing.assert_array_equal(kept["position"], [range(1000, 1006)] * 2)
    assert compressed.cache_size(WIDTH, WIDTH) == 7 + 1


def test_heads_are_those_of_the_formulation_inside():
    compressed = FORMULATIONS["compressed"]
    params = random_params(compressed)
    pruned, kept = kept_heads(compressed, params, [3])
    assert (pruned.num_heads, pruned.ids, pruned.inner.kv_heads, pruned.rank) == (1, (3,), 1, 7)
    assert kept["inner"]["key"].shape == (7, 1, 4)
    np.testing.assert_array_equal(kept["inner"]["key"][:, 0], params["inner"]["key"][:, 1])
    none, left = kept_heads(compressed, params, [])
    assert none == NoHeads(output_bias=False)
    assert left == {}


def test_the_latent_counts_in_the_operations():
    inner = MultiHead(num_heads=4, head_dim=4)
    compressed = Compressed(inner=inner, rank=6)
    assert compressed.flops(16, 16, 9, 9) == 2 * 9 * 16 * 6 + inner.flops(16, 6, 9, 9)
    rebuilding, mapping = 9 * 6 * 4 * 4 + 9 * 4 * 4, 4 * 6 * 4 + 9 * 4 * 6
    assert compressed.flops(16, 16, 1, 9) == 2 * 9 * 16 * 6 + inner.flops(16, 6, 1, 9) - 2 * (rebuilding - mapping)


@pytest.mark.parametrize("name", [name for name in FORMULATIONS if not hasattr(FORMULATIONS[name], "inner")])
def test_every_weight_that_reads_the_latent_is_declared_so(name):
    """Those are the ones that grow with the rank."""
    small, large = (flatten(Compressed(inner=FORMULATIONS[name], rank=rank).tensors(WIDTH, WIDTH)) for rank in (11, 13))
    grown = {path for path in small if small[path].shape != large[path].shape}
    sizes = {path: zip(tensor.out_sharding, tensor.shape, strict=True) for path, tensor in small.items()}
    assert grown == {path for path, pairs in sizes.items() if ("latent", 11) in pairs}
