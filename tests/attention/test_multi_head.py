"""Properties of multi-head and grouped attention; `test_formulation.py` tests those of all formulations."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from headjax.attention import Attention, Call, Grouped, Mask, MultiHead, NoHeads, RotaryHalves
from headjax.core.serialize import from_data, to_data
from headjax.core.tensors import Params, count
from tests.attention.formulations import (
    FORMULATIONS,
    SUMS,
    WIDTH,
    attended_by,
    kept_heads,
    outputs_of,
    random_inputs,
    random_params,
)
from tests.attention.test_attend import reference
from tests.closeness import assert_close

MEMORY_WIDTH = 10


CASES = {
    "standard": MultiHead(num_heads=4, head_dim=4),
    "fixed": MultiHead(num_heads=5, head_dim=8, value_dim=3, scale=0.21),
    "single": MultiHead(num_heads=1, head_dim=16, projection_bias=False, output_bias=False),
}


every = pytest.mark.parametrize("name", CASES)


def forward(attention: Attention, params: Params, x: Any, y: Any = None, **call: Any) -> np.ndarray:
    """The layer's output for queries from x and keys from y."""
    x = jnp.asarray(x)
    y = x if y is None else jnp.asarray(y)
    return np.asarray(outputs_of(attention, params, x, Call(**call), y))


@every
def test_agrees_with_its_formula_in_numpy(name):
    attention, x = CASES[name], random_inputs()
    params = random_params(attention)
    p = {key: np.asarray(array, np.float64) for key, array in params.items()}

    def project(what: str) -> np.ndarray:
        return np.einsum("btw,whd->bthd", x, p[what]) + p.get(f"{what}_bias", 0.0)

    scale = attention.head_dim**-0.5 if attention.scale is None else attention.scale
    allowed = np.tril(np.ones((x.shape[1],) * 2, bool))[None, None]
    context, _ = reference(project("query"), project("key"), project("value"), scale, allowed)
    expected = np.einsum("bqhd,hdw->bqw", context, p["output"]) + p.get("output_bias", 0.0)
    assert_close(forward(attention, params, x, mask=Mask(causal=True)), expected, sums=SUMS)


@every
def test_is_the_sum_of_its_single_heads(name):
    attention, x = CASES[name], random_inputs()
    params = random_params(attention)
    bias = params.get("output_bias", jnp.zeros(WIDTH))
    total = np.zeros_like(x) + np.asarray(bias)
    for head in range(attention.num_heads):
        single, kept = kept_heads(attention, params, [head])
        total += forward(single, kept, x) - np.asarray(bias)
    assert_close(forward(attention, params, x), total, sums=SUMS)


def test_a_gate_scales_the_rows_of_the_output_matrix():
    attention, x = CASES["fixed"], random_inputs()
    params = random_params(attention)
    gates = np.array([0.0, 1.0, -0.5, 2.0, 0.0], np.float32)
    scaled = params | {"output": params["output"] * gates[:, None, None]}
    gated = forward(attention, params, x, gates=jnp.asarray(gates))
    assert_close(gated, forward(attention, scaled, x), sums=SUMS)


def test_heads_are_kept_in_the_order_asked_for_under_their_original_numbers():
    attention = CASES["fixed"]
    params = random_params(attention)
    once, kept = kept_heads(attention, params, [4, 1, 2])
    twice, kept = kept_heads(once, kept, [2, 0])
    assert once.ids == (4, 1, 2)
    assert twice.ids == (2, 4)
    np.testing.assert_array_equal(kept["query"][:, 1], params["query"][:, 4])
    np.testing.assert_array_equal(kept["output_bias"], params["output_bias"])


def test_without_heads_the_output_bias_remains():
    attention, x = CASES["standard"], random_inputs()
    params = random_params(attention)
    none, kept = kept_heads(attention, params, [])
    assert none == NoHeads()
    assert_close(forward(none, kept, x), np.broadcast_to(params["output_bias"], x.shape), sums=SUMS)
    none, kept = kept_heads(CASES["single"], random_params(CASES["single"]), [])
    assert (none, kept) == (NoHeads(output_bias=False), {})


def test_queries_may_attend_to_another_sequence_of_another_width():
    attention = CASES["fixed"]
    shapes = {name: tensor.shape for name, tensor in attention.tensors(WIDTH, MEMORY_WIDTH).items()}
    assert (shapes["query"], shapes["key"], shapes["value"]) == (
        (WIDTH, 5, 8),
        (MEMORY_WIDTH, 5, 8),
        (MEMORY_WIDTH, 5, 3),
    )
    generator = np.random.default_rng(0)
    params = {name: jnp.asarray(generator.standard_normal(shape), jnp.float32) for name, shape in shapes.items()}
    output = forward(attention, params, random_inputs(), random_inputs(length=9, width=MEMORY_WIDTH))
    assert output.shape == (2, 6, WIDTH)


def test_head_size_is_free_of_the_width():
    """The standard layer's size does not depend on its number of heads, the fixed head size's grows with it."""
    standard = {count(MultiHead(num_heads=h, head_dim=16 // h).tensors(16, 16)) for h in (1, 2, 4, 8)}
    assert standard == {4 * 16 * 16 + 4 * 16}
    fixed = [count(MultiHead(num_heads=h, head_dim=8, output_bias=False).tensors(16, 16)) for h in (1, 2, 4)]
    assert fixed == [fixed[0], 2 * fixed[0], 4 * fixed[0]]


def test_cache_holds_one_key_and_one_value_a_head():
    assert CASES["fixed"].cache_size(WIDTH, WIDTH) == 5 * (8 + 3)


def context(attention, params, x):
    call = Call(mask=Mask(causal=True))
    return np.asarray(attended_by(attention, params, x, call).context)


@pytest.mark.parametrize("index", [None, (1, 0, 0, 0, 1, 0)])
def test_equals_multi_head_attention_with_repeated_heads(index):
    grouped = Grouped(num_heads=6, kv_heads=2, head_dim=4, projection_bias=True, output_bias=True, kv_index=index)
    params, x = random_params(grouped), jnp.asarray(random_inputs())
    read = jnp.asarray(index or (0, 0, 0, 1, 1, 1))
    repeated = params | {name: jnp.take(params[name], read, axis=1) for name in ("key", "value")}
    repeated |= {name: jnp.take(params[name], read, axis=0) for name in ("key_bias", "value_bias")}
    multi_head = MultiHead(num_heads=6, head_dim=4)
    assert_close(context(grouped, params, x), context(multi_head, repeated, x), sums=SUMS)


def test_removal_takes_unread_key_and_value_heads_away():
    grouped = FORMULATIONS["grouped"]
    params = random_params(grouped)
    whole, kept = kept_heads(grouped, params, [3, 4, 5])
    assert (whole.kv_heads, whole.kv_index) == (1, None)
    np.testing.assert_array_equal(kept["key"], params["key"][:, 1:])
    ragged, kept = kept_heads(grouped, params, [0, 3, 4])
    assert (ragged.kv_heads, ragged.kv_index) == (2, (0, 1, 1))
    assert ragged.cache_size(WIDTH, WIDTH) == grouped.cache_size(WIDTH, WIDTH)
    even, _ = kept_heads(ragged, kept, [0, 2])
    assert (even.kv_heads, even.kv_index) == (2, None)
    assert even.ids == (0, 4)


def test_cache_shrinks_with_the_groups():
    sizes = [Grouped(num_heads=8, kv_heads=groups, head_dim=4).cache_size(32, 32) for groups in (1, 2, 8)]
    assert sizes == [8, 16, 64]


KEPT = MultiHead(num_heads=3, head_dim=4, rotary=RotaryHalves(base=100.0, dim=8), frequencies=((0, 1), (1, 3), (0, 2)))


def test_heads_keep_frequencies_of_their_own():
    """As whole heads do whose other dimensions are zero, from a cache, with heads removed, and read back from JSON."""
    params, x = random_params(KEPT), jnp.asarray(random_inputs())
    whole = MultiHead(num_heads=3, head_dim=8, value_dim=4, scale=KEPT.logit_scale, rotary=RotaryHalves(base=100.0))
    places = np.asarray([[first, second, first + 4, second + 4] for first, second in KEPT.frequencies])
    spread = np.eye(8, dtype=np.float32)[places]
    wide = params | {
        name: jnp.einsum("...hd,hde->...he", params[name], spread)
        for name in ("query", "key", "query_bias", "key_bias")
    }
    call = Call(mask=Mask(causal=True))

    def output(attention, params):
        return outputs_of(attention, params, x, call)

    assert_close(output(KEPT, params), output(whole, wide), sums=4 * SUMS)
    module, kept = KEPT.bind(params, WIDTH, WIDTH), Mask(causal=True, query_offset=jnp.asarray(5))
    step = module.combine(module.attend(x[:, 5:], module.key_values(x, None), Call(mask=kept)).context)
    assert_close(step[:, 0], output(KEPT, params)[:, 5], sums=SUMS)
    assert_close(
        output(*kept_heads(KEPT, params, [2, 0])),
        output(*kept_heads(whole, wide, [2, 0])),
        sums=4 * SUMS,
    )
    assert from_data(Attention, to_data(KEPT)) == KEPT
