"""Collaborative and Tucker attention against multi-head attention, of which they are reparametrisations."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headjax.attention import Attention, Call, Collaborative, Concatenate, Mask, MultiHead, Tucker
from headjax.attention.collaborative import MIXINGS
from headjax.core.errors import ConfigError
from headjax.core.tensors import Normal, Params, count, initialize, stack_weight
from tests.attention.formulations import SUMS, WIDTH, attended_by, kept_heads, random_inputs, random_params
from tests.closeness import assert_close

HEADS, DIM, VALUES = 3, 4, 5


MULTI = MultiHead(num_heads=HEADS, head_dim=DIM, value_dim=VALUES)


BLOCKS = Collaborative(
    num_heads=HEADS, shared_dim=HEADS * DIM, value_dim=VALUES, head_dim=DIM, projection_bias=True, content_bias=True
)


def block_ones(heads: int, dim: int) -> jnp.ndarray:
    """The mixing under which head h reads its own `dim` columns of the shared projections."""
    return jnp.asarray(np.kron(np.eye(heads, dtype=np.float32), np.ones((1, dim), np.float32)))


def concatenated(params: Params) -> Params:
    """Multi-head parameters as collaborative ones: the heads' projections side by side, mixed by block-ones."""
    flat = {name: params[name].reshape(WIDTH, -1) for name in ("query", "key")}
    biases = {name: params[name].reshape(-1) for name in ("query_bias", "key_bias")}
    kept = {name: params[name] for name in ("value", "value_bias", "output", "output_bias")}
    content = jnp.zeros((WIDTH, HEADS), jnp.float32)
    return {**flat, **biases, **kept, "mixing": block_ones(HEADS, DIM), "content_bias": content}


def attended(attention: Attention, params: Params, **call: object) -> tuple[np.ndarray, np.ndarray]:
    """Outputs and probabilities of causal self-attention."""
    x = jnp.asarray(random_inputs())
    result = attended_by(attention, params, x, Call(mask=Mask(causal=True), **call))
    outputs = attention.bind(params, WIDTH, WIDTH).combine(result.context)
    return np.asarray(outputs), np.asarray(result.probabilities)


def test_multi_head_is_the_case_of_block_ones_mixing():
    params = random_params(MULTI)
    expected, probabilities = attended(MULTI, params)
    output, mixed = attended(BLOCKS, concatenated(params))
    assert_close(mixed, probabilities, sums=SUMS)
    assert_close(output, expected, sums=SUMS)


def test_content_bias_stands_in_for_the_query_bias():
    """(x W_Q + b_Q)(y W_K)^T = x W_Q W_K^T y^T + (y u)^T with u = W_K b_Q, head by head (section 3.3)."""
    params = random_params(MULTI)
    expected, _ = attended(MULTI, params)
    content = jnp.einsum("whd,hd->wh", params["key"], params["query_bias"])
    moved = concatenated(params) | {"content_bias": content, "query_bias": jnp.zeros(HEADS * DIM)}
    output, _ = attended(BLOCKS, moved)
    assert_close(output, expected, sums=SUMS)
    without, _ = attended(BLOCKS, moved | {"content_bias": jnp.zeros((WIDTH, HEADS))})
    assert np.abs(without - expected).max() > 0.1


def test_key_bias_vanishes_in_the_softmax():
    """x W_Q . b_K is the same for every key of a query."""
    params = random_params(BLOCKS)
    _, expected = attended(BLOCKS, params)
    _, probabilities = attended(BLOCKS, params | {"key_bias": jnp.zeros(HEADS * DIM)})
    assert np.abs(params["key_bias"]).max() > 0.1
    assert_close(probabilities, expected, sums=SUMS)


def test_logits_are_those_of_the_formula():
    shared = Collaborative(
        num_heads=HEADS, shared_dim=6, value_dim=VALUES, head_dim=9, projection_bias=True, content_bias=True
    )
    params = random_params(shared)
    p = {name: np.asarray(array, np.float64) for name, array in params.items()}
    x = random_inputs().astype(np.float64)
    query, key = x @ p["query"] + p["query_bias"], x @ p["key"] + p["key_bias"]
    for head in range(HEADS):
        content = (x @ p["content_bias"][:, head])[:, None, :]
        logits = (query * p["mixing"][head] @ key.swapaxes(1, 2) + content) / 3.0
        logits = np.where(np.tril(np.ones((6, 6), bool)), logits, -np.inf)
        expected = np.exp(logits - logits.max(axis=-1, keepdims=True))
        expected /= expected.sum(axis=-1, keepdims=True)
        assert_close(attended(shared, params)[1][:, head], expected, sums=SUMS)


def test_content_bias_adds_to_a_relative_bias():
    """A bias of the call (relative positions) and the content bias are both added to the logits."""
    params = random_params(BLOCKS)
    bias = jnp.asarray(np.random.default_rng(2).standard_normal((1, HEADS, 6, 6)), jnp.float32)
    without = dataclasses.replace(BLOCKS, content_bias=False)
    lean = {name: array for name, array in params.items() if name != "content_bias"}
    content = jnp.swapaxes(jnp.asarray(random_inputs()) @ params["content_bias"], 1, 2)[:, :, None] / np.sqrt(DIM)
    expected, _ = attended(without, lean, bias=bias + content)
    assert_close(attended(BLOCKS, params, bias=bias)[0], expected, sums=SUMS)


def test_cache_holds_one_key_for_all_heads():
    lean = Collaborative(num_heads=HEADS, shared_dim=6, value_dim=VALUES, head_dim=DIM)
    assert lean.cache_size(WIDTH, WIDTH) == 6 + HEADS * VALUES
    assert lean.bind(random_params(lean), WIDTH, WIDTH).key_values(jnp.ones((2, 7, WIDTH)), None)["key"].shape == (
        2,
        7,
        6,
    )
    assert BLOCKS.cache_size(WIDTH, WIDTH) == HEADS * DIM + HEADS * VALUES + HEADS


def test_removing_a_head_leaves_the_shared_projections():
    params = random_params(BLOCKS)
    kept, slim = kept_heads(BLOCKS, params, [2])
    assert kept.ids == (2,)
    np.testing.assert_array_equal(slim["query"], params["query"])
    np.testing.assert_array_equal(slim["mixing"], params["mixing"][2:])
    np.testing.assert_array_equal(slim["content_bias"], params["content_bias"][:, 2:])
    np.testing.assert_array_equal(slim["output"], params["output"][2:])


def test_parameters_are_those_the_paper_counts():
    """W_Q and W_K of width x shared_dim, M of heads x shared_dim, W_V and W_O of width x width each."""
    lean = Collaborative(num_heads=4, shared_dim=6, value_dim=4, head_dim=4, value_bias=False, output_bias=False)
    assert count(lean.tensors(WIDTH, WIDTH)) == 2 * WIDTH * 6 + 4 * 6 + 2 * WIDTH * WIDTH


def context(attention, params, x):
    call = Call(mask=Mask(causal=True))
    return np.asarray(attended_by(attention, params, x, call).context)


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
    zeros = {name: jnp.zeros((4, 2)) for name in ("query_bias", "key_bias")}
    multi_head = MultiHead(num_heads=4, head_dim=2, value_dim=4)
    expected = context(multi_head, params | heads | zeros, x)
    assert_close(context(collaborative, params, x), expected, sums=SUMS)

    tucker = Tucker(num_heads=4, query_rank=8, key_rank=8, value_dim=4, head_dim=2, mixing_init=Concatenate())
    stacked = stack_weight(tucker.tensors(WIDTH, WIDTH)["mixing"], 2)
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


@pytest.mark.parametrize("kind", [Collaborative, Tucker])
def test_concatenated_blocks_do_not_keep_heads_from_being_removed(kind):
    """Eight dimensions divide among four heads, but not among the three that are left."""
    sizes = {"shared_dim": 8} if kind is Collaborative else {"query_rank": 8, "key_rank": 8}
    left = kind(num_heads=4, value_dim=4, head_dim=4, mixing_init=Concatenate(), **sizes).with_heads([0, 1, 3])
    assert left.structure().num_heads == 3
