"""Stochastic depth: which sub-layers an example skips, and how the others make up for it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from headjax.core.kind import fresh
from headjax.core.modules import bind, declared
from headjax.core.tensors import initialize
from headjax.nn.block import Block, LayerConfig, State
from tests import tiny
from tests.closeness import assert_close

RATE, EXAMPLES = 0.4, 400
PLAIN = LayerConfig(width=tiny.WIDTH, attention=tiny.multi_head(), hidden=32, residual="pre_norm", depth=3)
SKIPPING = dataclasses.replace(PLAIN, stochastic_depth=RATE)


@pytest.fixture(scope="module")
def params():
    return initialize(declared(Block(PLAIN)), jax.random.key(0), headjax.nn.Normal(0.3))


@functools.partial(jax.jit, static_argnums=0)
def added(layer, params, number, key):
    one = jax.random.normal(jax.random.key(1), (1, 3, tiny.WIDTH))
    x = jnp.broadcast_to(one, (EXAMPLES, *one.shape[1:]))
    return bind(fresh(Block, layer), params)(State(x), headjax.models.ForwardOptions(key=key), number)[0] - x


def output(layer, params, number, key=None):
    """Of many equal examples, what a layer of a stack of three adds to the stream."""
    return np.asarray(added(layer, params, number, key))


def test_the_last_layer_skips_each_sub_layer_at_its_rate(params):
    outputs = output(SKIPPING, params, 2, jax.random.key(2)).reshape(EXAMPLES, -1)
    distinct, counts = np.unique(np.round(outputs, 4), axis=0, return_counts=True)
    assert len(distinct) == 4, "either, both or none of attention and feed-forward"
    (none,) = counts[np.abs(distinct).max(axis=1) == 0]
    assert abs(none / EXAMPLES - RATE**2) < 0.06


def test_what_is_kept_is_scaled_to_the_same_mean(params):
    attention_alone = jax.tree.map(jnp.zeros_like, params) | {
        name: params[name] for name in params if "attention" in name
    }
    whole, some = (output(layer, attention_alone, 2, jax.random.key(3)) for layer in (PLAIN, SKIPPING))
    kept = np.abs(some).max(axis=(1, 2)) > 0
    assert 0.5 < kept.mean() < 0.7
    assert_close(some[kept], whole[kept] / (1.0 - RATE), sums=tiny.SUMS)


def test_rates_grow_from_nothing_at_the_first_layer(params):
    whole = output(PLAIN, params, 0)
    assert_close(output(SKIPPING, params, 0, jax.random.key(2)), whole, sums=tiny.SUMS)
    middle = output(SKIPPING, params, 1, jax.random.key(2)).reshape(EXAMPLES, -1)
    assert abs((np.abs(middle).max(axis=1) == 0).mean() - (RATE / 2) ** 2) < 0.04
    assert_close(output(SKIPPING, params, 2), whole, sums=tiny.SUMS, message="outside training")
