"""Feed-forward sub-layers, residual branches, embeddings and outputs against their formulas."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headjax.attention.operands import Dropout
from headjax.core.norms import RMSNorm
from headjax.models.embeddings import Embeddings, NoPositions, RelativeBuckets, Sinusoidal
from headjax.models.outputs import Pooler, Tied, Untied
from headjax.models.residuals import SandwichNorm
from headjax.models.feed_forward import Dense, GatedDense
from tests import tiny
from tests.closeness import assert_close
from tests.models.test_encoder import PADDED, config

WIDTH, HIDDEN = 4, 6
GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize("kind", [Dense, GatedDense])
@pytest.mark.parametrize("bias", [True, False])
def test_feed_forward_maps_are_those_of_the_formula(kind, bias):
    feed_forward = kind(HIDDEN, activation="relu", bias=bias)
    declared = feed_forward.tensors(WIDTH)
    params = {name: GENERATOR.standard_normal(tensor.shape).astype(np.float32) for name, tensor in declared.items()}
    assert ("up_bias" in params) == bias
    x = GENERATOR.standard_normal((2, 3, WIDTH)).astype(np.float32)

    def mapped(name, inputs):
        return inputs @ params[name] + params.get(f"{name}_bias", np.zeros(params[name].shape[1]))[None, None]

    activated = np.maximum(mapped("up" if kind is Dense else "gate", x), 0.0)
    inner = activated if kind is Dense else activated * mapped("up", x)
    assert_close(feed_forward.bind(params, WIDTH)(x, Dropout()), mapped("down", inner), sums=4 * (WIDTH + HIDDEN))


def test_a_sandwich_norm_normalises_before_and_after_the_sub_layer():
    residual = SandwichNorm(RMSNorm(1e-3))
    params = {name: {"scale": jnp.full(tiny.WIDTH, size)} for name, size in (("norm", 2.0), ("after", 3.0))}
    assert residual.tensors(tiny.WIDTH).keys() == params.keys()
    residual = residual.bind(params, tiny.WIDTH)
    x = jax.random.normal(jax.random.key(1), (2, 3, tiny.WIDTH))

    def normal(y):
        return y / np.sqrt(np.square(y).mean(axis=-1, keepdims=True) + 1e-3)

    expected = x + 3.0 * normal(np.sin(2.0 * normal(np.asarray(x))))
    assert_close(residual.join(x, jnp.sin(residual.enter(x))), expected, sums=tiny.WIDTH)


def test_t5_buckets():
    """Buckets 0 to 3 for distances 0 to 3 back, then geometric; the other half for keys after the query."""
    bias = RelativeBuckets(num_heads=2, buckets=16, max_distance=32)
    distances = jnp.asarray([0, -1, -3, -4, -6, -8, -15, -31, -100, 1, 3, 4, 100])
    np.testing.assert_array_equal(bias.bucket(distances), [0, 1, 3, 4, 4, 5, 6, 7, 7, 9, 11, 12, 15])
    causal = dataclasses.replace(bias, bidirectional=False)
    np.testing.assert_array_equal(causal.bucket(jnp.asarray([5, 0, -7, -8, -100])), [0, 0, 7, 8, 15])


@pytest.mark.parametrize("endpoint, steps", [(False, 4), (True, 3)])
def test_sinusoidal_positions(endpoint, steps):
    table = Sinusoidal(endpoint=endpoint)(jnp.arange(6)[None], 8, None)[0]
    angles = np.arange(6)[:, None] * 10000.0 ** (-np.arange(4) / steps)[None]
    assert_close(table, np.concatenate([np.sin(angles), np.cos(angles)], axis=1), sums=1, scale=angles.max())


@pytest.mark.parametrize("positions", [Sinusoidal(), NoPositions()])
def test_order_is_seen_through_positions_alone(positions):
    """The last output of one layer without positions is the same for every order of the tokens before it."""
    config = tiny.decoder_config(tiny.layer(), embeddings=Embeddings(vocab_size=tiny.VOCABULARY, positions=positions))
    model, batch = tiny.model(config), tiny.tokens()
    shuffled = {"input_ids": batch["input_ids"][:, [3, 1, 0, 2, 4, 8, 7, 6, 5, 9]]}
    same = np.allclose(model(batch).logits[:, -1], model(shuffled).logits[:, -1], atol=1e-4)
    assert same == isinstance(positions, NoPositions)


@pytest.mark.parametrize("output", [Tied(bias=True), Untied()], ids=["tied", "untied"])
def test_logits_are_products_and_capped_ones_a_tanh_of_the_others(output):
    model = tiny.model(tiny.decoder_config(output=output))
    capped = model.replace(config=dataclasses.replace(model.config, output=dataclasses.replace(output, softcap=0.7)))
    hidden, logits = (np.asarray(each) for each in model(tiny.tokens())[:2])
    assert_close(capped(tiny.tokens()).logits, 0.7 * np.tanh(logits / 0.7), sums=tiny.SUMS)
    if isinstance(output, Tied):
        table, bias = model.params["embeddings"]["token"], model.params["output"]["bias"]
        assert_close(logits, hidden @ np.asarray(table).T + bias[None, None], sums=tiny.WIDTH)


def test_the_pooled_vector_is_of_the_first_token():
    model = tiny.model(config(pooler=Pooler(activation="relu")))
    output, pooler = model(PADDED), model.params["pooler"]
    expected = np.maximum(output.hidden[:, 0] @ pooler["kernel"] + pooler["bias"][None], 0.0)
    assert_close(output.pooled, expected, sums=tiny.WIDTH)
