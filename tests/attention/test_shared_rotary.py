"""Shared rotary components: the same keys as grouped attention, in two evaluations, from a cache of components."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from headjax.attention import Call, Mask, NoHeads, SharedRotary
from headjax.core.tensors import check
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

SHARED = FORMULATIONS["shared_rotary"]
NORMALISED = FORMULATIONS["shared_rotary_normalised"]


def test_it_is_grouped_attention_with_the_components_multiplied_out():
    """At positions of each example's own, as padding on the left gives."""
    params, x = random_params(SHARED), jnp.asarray(random_inputs())
    call = Call(mask=Mask(causal=True), positions=jnp.asarray([[0, 1, 2, 3, 4, 5], [2, 3, 4, 5, 6, 7]]))
    actual = attended_by(SHARED, params, x, call, positions=call.positions).context
    plain = SHARED.as_grouped(params)
    expected = attended_by(SHARED.inner, plain, x, call, positions=call.positions).context
    assert_close(actual, expected, sums=4 * SUMS)


def test_mixing_is_a_product_of_complex_numbers():
    params = random_params(SHARED)
    shared, mixing = (
        np.asarray(params[name], np.complex128).swapaxes(0, axis) for name, axis in (("key", 1), ("mixing", 0))
    )
    shared, mixing = shared[0] + 1j * shared[1], mixing[0] + 1j * mixing[1]
    starts = np.cumsum([0, *SHARED.components])
    found = np.asarray(SHARED.as_grouped(params)["key"])
    for frequency, (start, end) in enumerate(itertools.pairwise(starts)):
        expected = np.einsum("wr,gr->wg", shared[:, start:end], mixing[:, start:end])
        assert_close(found[:, :, frequency], expected.real, sums=8)
        assert_close(found[:, :, frequency + 3], expected.imag, sums=8)


def test_few_queries_meet_the_components_and_many_meet_rebuilt_keys(monkeypatch):
    """Both give the same; the layer's operations are those of the cheaper one."""
    assert [SHARED.rebuilds(length) for length in (1, 6)] == [False, True]
    params, x = random_params(SHARED), jnp.asarray(random_inputs())
    call = Call(mask=Mask(causal=True))
    rebuilt = attended_by(SHARED, params, x, call).context
    fewer = SHARED.flops(64, 64, 6, 6)
    monkeypatch.setattr(SharedRotary, "rebuilds", lambda *_: False)
    assert_close(attended_by(SHARED, params, x, call).context, rebuilt, sums=2 * SUMS)
    assert fewer < SHARED.flops(64, 64, 6, 6)


def test_normalised_keys_are_divided_by_the_root_mean_square_of_the_original_ones():
    params, x = random_params(NORMALISED), jnp.asarray(random_inputs())
    inner = NORMALISED.inner
    plain = NORMALISED.as_grouped(params)
    without = dataclasses.replace(inner, key_norm=None)
    original = jnp.einsum("bnw,wgd->bngd", x, params["inner"]["key"])
    size = jnp.sqrt(jnp.mean(jnp.square(original), axis=-1, keepdims=True) + inner.key_norm.epsilon)
    module = without.bind(plain, WIDTH, WIDTH)
    stored = module.key_values(x, None)
    expected = module.attend(x, stored | {"key": stored["key"] / size}, Call(mask=Mask(causal=True))).context
    found = attended_by(NORMALISED, params, x, Call(mask=Mask(causal=True))).context
    assert_close(found, expected, sums=4 * SUMS)


def test_the_cache_holds_components_values_and_one_exact_factor_per_key_head():
    params = jax.tree.map(lambda array: array.astype(jnp.bfloat16), random_params(NORMALISED))
    kept = NORMALISED.bind(params, WIDTH, WIDTH).key_values(jnp.asarray(random_inputs(), jnp.bfloat16), None)
    shapes = {name: array.shape for name, array in kept.items()}
    assert shapes == {"key": (2, 6, 6), "value": (2, 6, 2, 4), "key_factor": (2, 6, 2)}
    assert kept["key_factor"].dtype == jnp.float32
    assert SHARED.cache_size(WIDTH, WIDTH) == 2 * (1 + 3 + 2) + 3 * 6


def test_key_heads_leave_with_their_last_reader():
    params = random_params(SHARED)
    pruned, kept = kept_heads(SHARED, params, [4, 0])
    assert (pruned.num_heads, pruned.ids, pruned.inner.kv_heads, pruned.components) == (2, (4, 0), 2, (1, 3, 2))
    np.testing.assert_array_equal(kept["mixing"], params["mixing"][:, jnp.asarray([0, 2])])
    none, left = kept_heads(SHARED, params, [])
    assert (none, left) == (NoHeads(output_bias=False), {})


def test_fewer_key_heads_need_fewer_components():
    params, x = random_params(SHARED), jnp.asarray(random_inputs())
    assert SHARED.without_spare(params) == (SHARED, params)
    pruned, kept = kept_heads(SHARED, params, [0, 1, 4])
    smaller, trimmed = pruned.without_spare(kept)
    assert smaller.components == (1, 2, 2)
    check(smaller.tensors(WIDTH, WIDTH), trimmed)
    call = Call(mask=Mask(causal=True))
    expected = attended_by(pruned, kept, x, call).context
    found = attended_by(smaller, trimmed, x, call).context
    assert_close(found, expected, sums=2 * SUMS)
