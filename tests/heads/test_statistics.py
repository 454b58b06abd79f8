"""Where heads attend: entropy, distance, and roles."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from headjax.heads import seam
from headjax.heads.batches import sum_over
from headjax.heads.scoring import ROLES, head_roles, role_counts
from headjax.heads.seam import Pattern
from headjax.nn.block import Probe
from tests import tiny
from tests.closeness import assert_close

SUMS = 4
"""Terms of the longest way: a sum over 4 keys."""


def probe(weights, **fields):
    """A pattern of hand-made probabilities, `[heads, query, key]` for a batch of one."""
    weights = None if weights is None else jnp.asarray(weights, jnp.float32)[None]
    return Pattern(**{"probabilities": weights, "mask": None, "queries": None} | fields)


WEIGHTS = [
    [[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]],
    [[1.0, 0.0, 0.0, 0.0], [0.7, 0.1, 0.1, 0.1], [0.0, 0.0, 1.0, 0.0]],
]
MIXED = -(0.7 * math.log(0.7) + 3 * 0.1 * math.log(0.1))


def test_entropy_of_hand_made_probabilities():
    expected = [[math.log(4), 0.0], [math.log(2), MIXED], [0.0, 0.0]]
    assert_close(seam.entropy(probe(WEIGHTS))[0], expected, sums=SUMS)
    assert_close(seam.normalized_entropy(probe(WEIGHTS))[0], expected / np.log(4), sums=SUMS)


def test_normalized_entropy_counts_the_keys_a_query_may_see():
    causal = [[[1.0, 0, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]], [[1.0, 0, 0], [1.0, 0, 0], [0.5, 0.5, 0]]]
    expected = [[0.0, 0.0], [1.0, 0.0], [1.0, math.log(2) / math.log(3)]]
    got = seam.normalized_entropy(probe(causal, mask=headjax.nn.Mask(causal=True)))
    assert_close(got[0], expected, sums=SUMS)
    keys = jnp.array([[True, True, False]])
    padded = [[[0.5, 0.5, 0.0]] * 3, [[1.0, 0.0, 0.0]] * 3]
    assert_close(
        seam.normalized_entropy(probe(padded, mask=headjax.nn.Mask(keys=keys)))[0], [[1.0, 0.0]] * 3, sums=SUMS
    )


def test_distance_of_hand_made_probabilities():
    expected = [[1.5, 0.0], [0.5, 0.7 + 0.1 + 0.2], [1.0, 0.0]]
    assert_close(seam.distance(probe(WEIGHTS))[0], expected, sums=SUMS)


def test_an_implementation_without_probabilities_is_an_error():
    with pytest.raises(headjax.KernelError, match="holds no probabilities"):
        seam.entropy(probe(None))


def test_sums_are_taken_in_float64_on_the_host():
    parts = [{"a": jnp.float32(2**24)}, {"a": jnp.float32(1.0)}]  # float32 would lose the second one
    seen = []
    total = sum_over(parts, lambda number, tree: seen.append((number, float(tree["a"]))))
    assert total["a"].dtype == np.float64
    assert float(total["a"]) == 2**24 + 1
    assert seen == [(0, 2.0**24), (1, 1.0)]


def counts(weights, **fields):
    weights = jnp.asarray(weights, jnp.float32)[None]
    context = jnp.zeros((1, weights.shape[2], weights.shape[1], 1))
    seen = Probe(
        "attention",
        None,
        context,
        headjax.nn.Attended(context, weights),
        **({"mask": None, "query_mask": None} | fields),
    )
    hits, possible = role_counts(seen)
    return dict(zip(ROLES, np.asarray(hits)[:, 0].tolist(), strict=True)), dict(
        zip(ROLES, possible.tolist(), strict=True)
    )


PREVIOUS = np.eye(4, k=-1)
PREVIOUS[0, 2] = 1.0


def test_counts_of_a_head_that_looks_back():
    hits, possible = counts(PREVIOUS[None])
    assert hits == {"previous": 3, "self": 0, "next": 0, "first": 1}
    assert possible == {"previous": 3, "self": 4, "next": 3, "first": 4}


def test_queries_without_a_choice_and_padding_are_left_out():
    causal = np.eye(4, k=-1)
    causal[0, 0] = 1.0
    hits, possible = counts(
        causal[None], mask=headjax.nn.Mask(causal=True), query_mask=jnp.array([[True, True, True, False]])
    )
    assert hits == {"previous": 2, "self": 0, "next": 0, "first": 1}
    assert possible == {"previous": 2, "self": 2, "next": 0, "first": 2}


def test_the_first_key_is_that_of_the_first_token():
    """Behind padding, and in every packed example."""
    back, present = np.tile(np.eye(4)[1], (4, 1)), jnp.array([[False, True, True, True]])
    hits, possible = counts(back[None], mask=headjax.nn.Mask(causal=True, keys=present), query_mask=present)
    assert hits == {"previous": 1, "self": 0, "next": 0, "first": 2}
    assert possible == {"previous": 2, "self": 2, "next": 0, "first": 2}
    packed = jnp.array([[1, 1, 2, 2]])
    mask = headjax.nn.Mask(causal=True, query_segments=packed, key_segments=packed)
    hits, possible = counts(np.eye(4)[[0, 0, 2, 2]][None], mask=mask)
    assert (hits["first"], possible["first"]) == (2, 2)


def test_a_head_made_to_look_at_itself_has_that_role():
    """Keys equal to queries, scaled up: with nearly orthogonal tokens the diagonal wins."""
    config = tiny.decoder_config(tiny.layer(tiny.multi_head(2, 16)), tiny.layer(tiny.no_heads()))

    def look_at_self(found):
        params = found.params
        query = params["query"].at[:, 1].set(8.0 * jnp.eye(16))
        key = params["key"].at[:, 1].set(8.0 * jnp.eye(16))
        biases = {name: params[name].at[1].set(0.0) for name in ("query_bias", "key_bias")}
        return found.holding({"query": query, "key": key} | biases)

    model = headjax.map_attention(tiny.model(config), look_at_self, layers=[0])
    mask = {"attention_mask": np.ones((4, 10), np.int32)}
    roles = head_roles(model, [tiny.tokens(4, 10, 0) | mask, tiny.tokens(4, 10, 1) | mask])
    assert {head.layer for head in roles} == {0}
    assert roles[headjax.HeadId("decoder", 0, 1)].role == "self"
    assert roles[headjax.HeadId("decoder", 0, 0)].role is None
    assert np.isnan(roles[headjax.HeadId("decoder", 0, 0)].shares["next"])
