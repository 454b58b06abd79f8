"""Tucker attention is multi-head attention with factored W_Q^h W_K^hT; collaborative attention is its diagonal case."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headjax.attention import Call, Collaborative, Concatenate, Mask, MultiHead, Tucker
from headjax.attention.mixing import MIXINGS
from headjax.core.errors import ConfigError
from headjax.core.tensors import Normal, initialize
from tests.attention.formulations import SUMS, WIDTH, random_inputs, random_params
from tests.closeness import assert_close


def context(attention, params, x):
    call = Call(mask=Mask(causal=True))
    return np.asarray(attention.attend(params, x, attention.memory(params, x, None), call).context)


def test_equals_multi_head_attention_of_its_products():
    tucker = Tucker(num_heads=3, query_rank=6, key_rank=5, value_dim=4, head_dim=7, projection_bias=True)
    params, x = random_params(tucker), jnp.asarray(random_inputs())
    wide = {
        "query": jnp.einsum("dr,hrk->dhk", params["query"], params["mixing"]),
        "query_bias": jnp.einsum("r,hrk->hk", params["query_bias"], params["mixing"]),
        "key": jnp.repeat(params["key"][:, None], 3, axis=1),
        "key_bias": jnp.repeat(params["key_bias"][None], 3, axis=0),
    }
    multi_head = MultiHead(num_heads=3, head_dim=5, value_dim=4, scale=7**-0.5)
    assert_close(context(tucker, params, x), context(multi_head, params | wide, x), sums=SUMS)


def test_diagonal_mixing_is_collaborative_attention():
    sizes = {"num_heads": 3, "value_dim": 4, "head_dim": 7, "content_bias": True}
    collaborative = Collaborative(shared_dim=6, **sizes)
    tucker = Tucker(query_rank=6, key_rank=6, **sizes)
    params, x = random_params(collaborative), jnp.asarray(random_inputs())
    diagonal = params | {"mixing": jax.vmap(jnp.diag)(params["mixing"])}
    assert_close(context(tucker, diagonal, x), context(collaborative, params, x), sums=SUMS)


def test_concatenated_blocks_start_as_multi_head_attention():
    collaborative = Collaborative(num_heads=4, shared_dim=8, value_dim=4, head_dim=2, mixing_init=Concatenate())
    params = initialize(collaborative.tensors(WIDTH, WIDTH), jax.random.key(0), Normal(0.5))
    x = jnp.asarray(random_inputs())
    heads = {name: params[name].reshape(WIDTH, 4, 2) for name in ("query", "key")}
    multi_head = MultiHead(num_heads=4, head_dim=2, value_dim=4, projection_bias=False)
    expected = context(multi_head, params | heads, x)
    assert_close(context(collaborative, params, x), expected, sums=SUMS)

    tucker = Tucker(num_heads=4, query_rank=8, key_rank=8, value_dim=4, head_dim=2, mixing_init=Concatenate())
    stacked = tucker.tensors(WIDTH, WIDTH)["mixing"].stack(2)
    blocks = Concatenate()(jax.random.key(0), stacked, jnp.float32)
    assert blocks.shape == (2, 4, 8, 8)
    assert_close(context(tucker, params | {"mixing": blocks[1]}, x), expected, sums=SUMS)


def test_the_papers_mixings_have_names():
    collaborative = Collaborative(num_heads=16, shared_dim=256, value_dim=4, head_dim=4)
    declared = collaborative.tensors(WIDTH, WIDTH)["mixing"]
    drawn = {name: init(jax.random.key(0), declared, jnp.float32) for name, init in MIXINGS.items()}
    assert drawn["concatenate"].sum(axis=1).tolist() == [16.0] * 16
    assert drawn["concatenate"].max() == 1.0
    assert bool((drawn["ones"] == 1.0).all())
    assert float(drawn["normal"].std()) == pytest.approx(0.2, rel=0.05)


def test_blocks_that_do_not_tile_are_refused_with_both_fields():
    with pytest.raises(ConfigError, match=r"shared_dim.*num_heads of 4, got 6"):
        Collaborative(num_heads=4, shared_dim=6, value_dim=4, head_dim=4, mixing_init=Concatenate())
    with pytest.raises(ConfigError, match=r"query_rank equal to key_rank, got 8 and 4"):
        Tucker(num_heads=4, query_rank=8, key_rank=4, value_dim=4, head_dim=4, mixing_init=Concatenate())
    with pytest.raises(ConfigError, match=r"key_rank"):
        Tucker(num_heads=4, query_rank=8, key_rank=0, value_dim=4, head_dim=4)
    even = Collaborative(num_heads=4, shared_dim=8, value_dim=4, head_dim=4, mixing_init=Concatenate())
    assert even.with_heads([0, 1, 2]).num_heads == 3


@pytest.mark.parametrize("kind", [Collaborative, Tucker])
def test_concatenated_blocks_do_not_keep_heads_from_being_removed(kind):
    """Eight dimensions divide among four heads, but not among the three that are left."""
    sizes = {"shared_dim": 8} if kind is Collaborative else {"query_rank": 8, "key_rank": 8}
    left = kind(num_heads=4, value_dim=4, head_dim=4, mixing_init=Concatenate(), **sizes).with_heads([0, 1, 3])
    assert left.structure().num_heads == 3
