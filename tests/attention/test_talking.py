"""Talking heads against a plain loop, and as multi-head attention when they do not talk."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from headjax.attention import Call, Dropout, Mask, MultiHead, Talking
from tests.attention.formulations import FORMULATIONS, SUMS, attended_by, random_inputs, random_params
from tests.closeness import assert_close


def test_follows_the_formula():
    talking = FORMULATIONS["talking"]
    params, x = random_params(talking), random_inputs()
    generator = np.random.default_rng(0)
    bias = generator.standard_normal((1, talking.softmax_heads, 6, 6)).astype(np.float32)
    inputs = jnp.asarray(x)
    call = Call(mask=Mask(causal=True), bias=jnp.asarray(bias))
    attended = attended_by(talking, params, inputs, call)

    p = {name: np.asarray(array, np.float64) for name, array in params.items()}
    for example in range(2):
        logits = [
            (x[example] @ p["query"][:, i] + p["query_bias"][i])
            @ (x[example] @ p["key"][:, i] + p["key_bias"][i]).T
            / 2
            for i in range(3)
        ]
        weights = []
        for j in range(5):
            mixed = sum(logits[i] * p["logit_mixing"][i, j] for i in range(3)) + bias[0, j]
            mixed = np.where(np.tril(np.ones((6, 6), bool)), mixed, -np.inf)
            exponentials = np.exp(mixed - mixed.max(axis=1, keepdims=True))
            weights.append(exponentials / exponentials.sum(axis=1, keepdims=True))
        for h in range(4):
            mixed = sum(weights[j] * p["weight_mixing"][j, h] for j in range(5))
            value = x[example] @ p["value"][:, h] + p["value_bias"][h]
            assert_close(attended.probabilities[example, h], mixed, sums=SUMS)
            assert_close(attended.context[example, :, h], mixed @ value, sums=SUMS)


def test_silent_heads_are_multi_head_attention():
    talking = Talking(num_heads=3, logit_heads=3, softmax_heads=3, head_dim=4)
    params, x = random_params(talking), jnp.asarray(random_inputs())
    params |= {"logit_mixing": jnp.eye(3), "weight_mixing": jnp.eye(3)}
    multi_head = MultiHead(num_heads=3, head_dim=4)
    call = Call(mask=Mask(causal=True))
    actual = attended_by(talking, params, x, call)
    expected = attended_by(multi_head, params, x, call)
    assert_close(actual.context, expected.context, sums=SUMS)


def test_dropout_is_unbiased_and_leaves_the_reported_weights():
    talking = FORMULATIONS["talking"]
    params, x = random_params(talking), jnp.asarray(random_inputs())
    clean = attended_by(talking, params, x)

    def dropped(key):
        return attended_by(talking, params, x, Call(dropout=Dropout(0.3, key)))

    attended = jax.vmap(dropped)(jax.random.split(jax.random.key(0), 2000))
    assert_close(attended.probabilities[0], clean.probabilities, sums=SUMS)
    spread = attended.context.std(axis=0)
    assert float(spread.min()) > 0.0
    error = jnp.abs(attended.context.mean(axis=0) - clean.context) / spread
    assert float(error.max()) < 5.0 / 2000**0.5
