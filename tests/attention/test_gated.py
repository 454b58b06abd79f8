"""Gated heads: identity with a large bias, and otherwise the gates that the formula says."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headjax.attention import Call, Gated, Mask, MultiHead, NoHeads
from headjax.core.tensors import Constant, Normal, Zeros, initialize
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

PLAIN = ["fixed_head_size", "ragged_grouped", "collaborative", "latent", "talking"]


@pytest.mark.parametrize("name", PLAIN)
def test_a_large_bias_leaves_the_formulation_unchanged(name):
    inner = FORMULATIONS[name]
    gated = Gated(inner=inner, bias_init=Constant(30.0), kernel_init=Zeros())
    fresh = initialize(gated.tensors(WIDTH, WIDTH), jax.random.key(0), Normal(0.5))
    params, x = random_params(inner), jnp.asarray(random_inputs())
    call = Call(mask=Mask(causal=True))
    expected = attended_by(inner, params, x, call).context
    wrapped = fresh | {"inner": params}
    actual = attended_by(gated, wrapped, x, call).context
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 6, 3)])
def test_gates_multiply_those_of_the_call(shape):
    gated = FORMULATIONS["gated"]
    params, x = random_params(gated), jnp.asarray(random_inputs())
    given = jnp.asarray(np.random.default_rng(0).uniform(size=shape), jnp.float32)
    actual = attended_by(gated, params, x, Call(gates=given)).context
    inner = gated.inner
    plain = attended_by(inner, params["inner"], x, Call()).context
    own = 1.0 / (1.0 + np.exp(-(np.asarray(x) @ params["gate"] + params["gate_bias"].reshape(1, 1, 3))))
    full = given.reshape({1: (1, 1, 3), 2: (2, 1, 3), 3: (2, 6, 3)}[len(shape)])
    assert_close(actual, plain * (own * full)[..., None], sums=SUMS)


def test_heads_are_those_of_the_formulation_inside():
    gated = FORMULATIONS["gated"]
    pruned, _ = kept_heads(gated, random_params(gated), [2, 0])
    assert (pruned.num_heads, pruned.ids, pruned.inner.ids) == (2, (2, 0), (2, 0))
    assert pruned.structure() == Gated(inner=MultiHead(num_heads=2, head_dim=4))
    none, kept = kept_heads(gated, random_params(gated), [])
    assert none == NoHeads()
    assert set(kept) == {"output_bias"}
