"""Grouped-query attention is multi-head attention whose key and value heads repeat."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from headjax.attention import Call, Grouped, Mask, MultiHead
from headjax.core.errors import ConfigError
from tests.attention.formulations import FORMULATIONS, SUMS, WIDTH, random_inputs, random_params
from tests.closeness import assert_close


def context(attention, params, x):
    call = Call(mask=Mask(causal=True))
    return np.asarray(attention.attend(params, x, attention.memory(params, x, None), call).context)


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
    whole, kept = grouped.keep_heads(params, [3, 4, 5], WIDTH, WIDTH)
    assert (whole.kv_heads, whole.kv_index) == (1, None)
    np.testing.assert_array_equal(kept["key"], params["key"][:, 1:])
    ragged, kept = grouped.keep_heads(params, [0, 3, 4], WIDTH, WIDTH)
    assert (ragged.kv_heads, ragged.kv_index) == (2, (0, 1, 1))
    assert ragged.cache_size(WIDTH, WIDTH) == grouped.cache_size(WIDTH, WIDTH)
    even, _ = ragged.keep_heads(kept, [0, 2], WIDTH, WIDTH)
    assert (even.kv_heads, even.kv_index) == (2, None)
    assert even.ids == (0, 4)


def test_cache_shrinks_with_the_groups():
    sizes = [Grouped(num_heads=8, kv_heads=groups, head_dim=4).cache_size(32, 32) for groups in (1, 2, 8)]
    assert sizes == [8, 16, 64]


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"kv_heads": 3}, "kv_heads: 3 does not divide the num_heads of 4"),
        ({"kv_heads": 2, "kv_index": (0, 1)}, "kv_index: maps 2 heads, but num_heads is 4"),
        ({"kv_heads": 2, "kv_index": (0, 0, 0, 0)}, "kv_index: must name each of the 2 kv_heads"),
        ({"kv_heads": 0}, "kv_heads: must be an integer of at least 1"),
    ],
)
def test_impossible_groups_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        Grouped(num_heads=4, head_dim=4, **fields)
