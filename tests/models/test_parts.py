"""Feed-forward sub-layers, residual branches, embeddings and outputs against their formulas."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from headjax.core.modules import bind, declared
from headjax.nn.embeddings import Positions
from headjax.nn.norms import OffsetRMSNorm, Residual
from headjax.nn.projections import FeedForward
from tests import tiny
from tests.closeness import assert_close
from tests.models.test_encoder import PADDED, config

WIDTH, HIDDEN = 4, 6
GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("bias", [True, False])
def test_feed_forward_maps_are_those_of_the_formula(gated, bias):
    feed_forward = FeedForward(WIDTH, HIDDEN, "relu", gated=gated, bias=bias)
    shapes = {name: tensor.shape for name, tensor in declared(feed_forward).items()}
    params = {name: GENERATOR.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    assert ("up_bias" in params) == bias
    x = GENERATOR.standard_normal((2, 3, WIDTH)).astype(np.float32)

    def mapped(name, inputs):
        return inputs @ params[name] + params.get(f"{name}_bias", np.zeros(params[name].shape[1]))[None, None]

    activated = np.maximum(mapped("gate" if gated else "up", x), 0.0)
    inner = activated * mapped("up", x) if gated else activated
    assert_close(bind(feed_forward, params)(x), mapped("down", inner), sums=4 * (WIDTH + HIDDEN))


def test_a_sandwich_norm_normalises_before_and_after_the_sub_layer():
    residual = Residual("sandwich_norm", headjax.nn.RMSNorm(1e-3), tiny.WIDTH)
    params = {name: {"scale": jnp.full(tiny.WIDTH, size)} for name, size in (("norm", 2.0), ("after", 3.0))}
    assert declared(residual).keys() == params.keys()
    residual = bind(residual, params)
    x = jax.random.normal(jax.random.key(1), (2, 3, tiny.WIDTH))

    def normal(y):
        return y / np.sqrt(np.square(y).mean(axis=-1, keepdims=True) + 1e-3)

    expected = x + 3.0 * normal(np.sin(2.0 * normal(np.asarray(x))))
    assert_close(residual.join(x, jnp.sin(residual.enter(x))), expected, sums=tiny.WIDTH)


def test_the_offset_of_a_gain_is_not_rounded_to_bfloat16():
    x = jax.random.normal(jax.random.key(0), (64, WIDTH), jnp.bfloat16)
    scale = jnp.full(WIDTH, 2.0**-8, jnp.bfloat16)  # 1 + 2^-8 is no number in bfloat16
    norm = bind(OffsetRMSNorm().module(WIDTH), {"scale": scale})
    expected = OffsetRMSNorm.unit(x.astype(jnp.float32), 1e-5) * (1.0 + 2.0**-8)
    np.testing.assert_array_equal(norm(x), expected.astype(jnp.bfloat16))


@pytest.mark.parametrize("kind, steps", [("sinusoidal", 4), ("sinusoidal_endpoint", 3)])
def test_sinusoidal_positions(kind, steps):
    table = Positions(kind, None).waves(jnp.arange(6)[None], 8)[0]
    angles = np.arange(6)[:, None] * 10000.0 ** (-np.arange(4) / steps)[None]
    assert_close(table, np.concatenate([np.sin(angles), np.cos(angles)], axis=1), sums=1, scale=angles.max())


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_logits_are_products_and_capped_ones_a_tanh_of_the_others(tied):
    model = tiny.model(tiny.decoder_config(tied=tied, output_bias=tied))
    capped = model.replace(config=dataclasses.replace(model.config, softcap=0.7))
    hidden, logits = (np.asarray(each) for each in model(tiny.tokens())[:2])
    assert_close(capped(tiny.tokens()).logits, 0.7 * np.tanh(logits / 0.7), sums=tiny.SUMS)
    if tied:
        table, bias = model.params["embeddings"]["token"], model.params["output"]["bias"]
        assert_close(logits, hidden @ np.asarray(table).T + bias[None, None], sums=tiny.WIDTH)


def test_the_pooled_vector_is_of_the_first_token():
    model = tiny.model(config(pooler="relu"))
    output, pooler = model(PADDED), model.params["pooler"]
    expected = np.maximum(output.hidden[:, 0] @ pooler["kernel"] + pooler["bias"][None], 0.0)
    assert_close(output.pooled, expected, sums=tiny.WIDTH)
